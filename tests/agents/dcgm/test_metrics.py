"""A dcgm-exporter's text: each GPU's readings in our units, and nothing made up or counted twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.dcgm.metrics import DCGM_FIELDS, DcgmGpu, Scrape, is_blank, merged, parse_metrics
from muster.domain.gpu.metrics import INDEX, NUM_METRICS

LABELS = (
    'gpu="3",UUID="GPU-a",pci_bus_id="00000000:05:00.0",device="nvidia3",modelName="NVIDIA H100 80GB HBM3",'
    'Hostname="gpu-17",DCGM_FI_DRIVER_VERSION="570.86.15"'
)


def parsed(*samples: str) -> Scrape:
    return parse_metrics(samples)


def only(*samples: str) -> DcgmGpu:
    (gpu,) = parsed(*samples).gpus
    return gpu


def sample(field: str, value: object, labels: str = LABELS) -> str:
    return f"{field}{{{labels}}} {value}"


def test_a_gpu_is_described_once_and_its_values_are_in_our_units() -> None:
    gpu = only(
        "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).",
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge",
        sample("DCGM_FI_DEV_GPU_TEMP", 61),
        sample("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 319159391),
        sample("DCGM_FI_DEV_POWER_USAGE", "409.692000"),
        sample("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0.412500"),
        "",
    )
    assert (gpu.uuid, gpu.index, gpu.model, gpu.host) == ("GPU-a", 3, "NVIDIA H100 80GB HBM3", "gpu-17")
    assert (gpu.pci, gpu.driver) == ("00000000:05:00.0", "570.86.15")
    assert gpu.values == {
        "temperature_c": 61.0,
        "energy_j": pytest.approx(319159.391),
        "power_w": 409.692,
        "tensor_active_percent": pytest.approx(41.25),
    }


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL_total"])
def test_a_sample_of_type_counter_keeps_its_name(name: str) -> None:
    gpu = only("# TYPE DCGM_FI_DEV_ECC_DBE_VOL_TOTAL counter", sample(name, 4))
    assert gpu.values == {"ecc_uncorrected_volatile": 4.0}


@pytest.mark.parametrize(
    "blank",
    [
        "NaN",
        "+Inf",
        2147483632,
        2147483635,
        140737488355328,
        140737488355330,
        9223372036854775792,
        "1.8446744073709552e+19",
    ],
)
def test_what_dcgm_cannot_report_is_no_value(blank: object) -> None:
    assert only(sample("DCGM_FI_DEV_GPU_TEMP", blank), sample("DCGM_FI_DEV_SM_CLOCK", 1410)).values == {
        "sm_clock_mhz": 1410.0
    }


@pytest.mark.parametrize("value", ["140737488355328.000000", 140737488355332, "nan", -1, 1.01, 2147483635, 41.0])
def test_tensor_activity_that_is_no_share_is_unknown_and_never_zero(value: object) -> None:
    """DCGM_FP64_BLANK and its kin: not supported, not watched, no permission."""
    found = parsed(sample("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", value), sample("DCGM_FI_DEV_SM_CLOCK", 1410))
    assert (found.gpus[0].values, found.num_unknown) == ({"sm_clock_mhz": 1410.0}, 0)


def test_idle_tensor_cores_are_zero() -> None:
    assert only(sample("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0.000000")).values == {"tensor_active_percent": 0.0}


def test_the_newest_xid_is_shown_and_zero_is_none_of_them() -> None:
    assert only(sample("DCGM_FI_DEV_XID_ERRORS", 94)).last_xid == 94
    assert only(sample("DCGM_FI_DEV_XID_ERRORS", 0)).last_xid == 0
    assert only(sample("DCGM_FI_DEV_GPU_TEMP", 50)).last_xid is None


def test_mig_instances_share_what_is_the_gpus_and_add_up_their_memory() -> None:
    parts = [f'{LABELS},GPU_I_PROFILE="2g.20gb",GPU_I_ID="{number}"' for number in (3, 5, 6)]
    gpu = only(
        *(sample("DCGM_FI_DEV_FB_USED", 1000, part) for part in parts),
        *(sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2, part) for part in parts),
        *(sample("DCGM_FI_DEV_GPU_TEMP", 60, part) for part in parts),
        *(
            sample("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", value, part)
            for value, part in zip((0.0, 0.25, 0.125), parts, strict=True)
        ),
    )
    assert gpu.values == {
        "memory_used_mib": 3000.0,
        "ecc_uncorrected_volatile": 2.0,
        "temperature_c": 60.0,
        "tensor_active_percent": 25.0,
    }


def test_lines_that_are_none_are_named_and_the_rest_is_read() -> None:
    found = parsed(
        sample("DCGM_FI_DEV_GPU_TEMP", 61),
        "DCGM_FI_DEV_GPU_TEMP 61",
        sample("DCGM_FI_DEV_GPU_TEMP", "hot"),
        sample("DCGM_FI_DEV_GPU_TEMP", 61, 'gpu="1"'),
        'DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-b',
        sample("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.9),
        sample("DCGM_FI_DEV_SM_CLOCK", 1410) + " 1700000000000",
    )
    assert found.bad_lines == (2, 3, 4, 5)
    assert (found.num_samples, found.num_unknown, len(found.gpus)) == (3, 1, 1)


def test_labels_may_hold_quotes_commas_and_braces() -> None:
    gpu = only(sample("DCGM_FI_DEV_GPU_TEMP", 61, r'UUID="GPU-a",modelName="a \"b\", {c} \\d",Hostname="x"'))
    assert (gpu.model, gpu.host) == (r'a "b", {c} \d', "x")


@pytest.mark.parametrize("index", ["1" * 5000, "²", "-1", "x", ""])
def test_a_label_that_is_no_index_is_none(index: str) -> None:
    assert only(sample("DCGM_FI_DEV_GPU_TEMP", 61, f'gpu="{index}",UUID="GPU-a"')).index is None


def test_dcgm_fills_what_nvml_does_not_report_and_never_adds_to_it() -> None:
    gpu = only(sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 4), sample("DCGM_FI_DEV_MEMORY_TEMP", 70))
    nvml = [None] * NUM_METRICS
    ours: list[float | None] = [*nvml]
    ours[INDEX["ecc_uncorrected_volatile"]] = 4.0
    both = merged(tuple(ours), gpu.row())
    assert both[INDEX["ecc_uncorrected_volatile"]] == 4.0
    assert both[INDEX["memory_temperature_c"]] == 70.0
    assert sum(value is not None for value in both) == 2


def test_every_field_names_a_metric_of_ours() -> None:
    assert {metric for metric, _ in DCGM_FIELDS.values()} <= INDEX.keys()


@given(st.lists(st.text(max_size=120)))
def test_no_text_breaks_the_parser(lines: list[str]) -> None:
    found = parse_metrics(lines)
    assert all(not is_blank(value) for gpu in found.gpus for value in gpu.values.values())
