"""Heat by a GPU's own model, just below each limit and over it; and readings that no GPU has."""

from dataclasses import replace

import pytest

from health.detectors.load.heat import limit_of
from health.detectors.past import Past, is_quiet, judged, past_check_of, watched_in
from health.detectors.registry import GpuMemory, check_once, judge_sample
from muster.domain.evidence.findings import EventKind, Finding, Severity, Suppression
from muster.domain.policy.health import HealthPolicy
from tests.health.case_factory import GPU, NODE, NOW_MS, POLICY, SECOND, sample, signal

CHECK = past_check_of(POLICY)
H100, A100, B200, GB200 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA B200", "NVIDIA GB200"


def found(model: str, readings: dict[str, float | None]) -> list[str]:
    _, findings = judge_sample(GpuMemory(NODE, model=model), sample(NOW_MS, **readings), POLICY, NOW_MS)
    assert all(each.severity is Severity.DEGRADED for each in findings)
    return [each.fault_key for each in findings]


@pytest.mark.parametrize(
    ("model", "reading", "well", "hot", "key"),
    [
        (H100, "temperature_c", 95.0, 95.5, "temperature:gpu"),
        (A100, "temperature_c", 85.0, 86.0, "temperature:gpu"),
        (H100, "memory_temperature_c", 105.0, 106.0, "temperature:memory"),
        (A100, "memory_temperature_c", 95.0, 96.0, "temperature:memory"),
        (H100, "temperature_margin_c", -2.0, -2.5, "thermal_margin"),
        (B200, "temperature_margin_c", -3.0, -3.5, "thermal_margin"),
        (GB200, "temperature_margin_c", -2.0, -2.5, "thermal_margin"),
    ],
)
def test_a_gpu_is_hot_by_its_models_limit(model: str, reading: str, well: float, hot: float, key: str) -> None:
    assert found(model, {reading: well}) == []
    assert found(model, {reading: hot}) == [key]


@pytest.mark.parametrize("reading", ["temperature_c", "memory_temperature_c", "temperature_margin_c"])
@pytest.mark.parametrize("value", [-40.0, 999.0, float("nan"), float("inf")])
def test_a_reading_that_no_gpu_has_states_nothing(reading: str, value: float) -> None:
    seen = sample(NOW_MS, **{reading: value})
    assert is_quiet(watched_in(seen.values), seen.values, CHECK)
    assert found(H100, {reading: value}) == []


def test_a_broken_sensor_does_not_end_the_heat_that_was_seen() -> None:
    past, _ = judged(Past(), NODE, sample(NOW_MS, temperature_c=99.0), POLICY, NOW_MS, H100)
    past, said = judged(past, NODE, sample(NOW_MS + SECOND, temperature_c=999.0), POLICY, NOW_MS + SECOND, H100)
    assert said == ()
    _, said = judged(past, NODE, sample(NOW_MS + 2 * SECOND, temperature_c=60.0), POLICY, NOW_MS + 2 * SECOND, H100)
    assert [(type(each) is Finding, each.fault_key) for each in said] == [(False, "temperature:gpu")]


def test_what_the_quick_check_passes_over_is_hot_for_no_model() -> None:
    for model in (H100, A100, B200, GB200, ""):
        for core_c, margin_c in ((85.0, -2.0), (20.0, 0.0)):
            seen = sample(temperature_c=core_c, temperature_margin_c=margin_c)
            assert is_quiet(watched_in(seen.values), seen.values, CHECK)
            assert found(model, {"temperature_c": core_c, "temperature_margin_c": margin_c}) == []


def test_the_longest_name_that_fits_has_the_limit() -> None:
    by_model = {"B200": -3.0, "gb200": -2.0, "": 7.0}
    assert [limit_of(model, 0.0, by_model) for model in (GB200, B200, H100)] == [-2.0, -3.0, 0.0]


@pytest.mark.parametrize(
    ("reported", "reading", "key"),
    [
        ("temperature_max_c", "temperature_c", "temperature:gpu"),
        ("memory_temperature_max_c", "memory_temperature_c", "temperature:memory"),
    ],
)
@pytest.mark.parametrize("own_c", [100.0, 109.0])
def test_a_gpu_that_reports_its_own_maximum_is_hot_by_that(reported: str, reading: str, key: str, own_c: float) -> None:
    state = replace(signal(EventKind.GPU_STATE), values={reported: own_c})

    def keys(hot_c: float) -> set[str]:
        found = check_once(NODE, [sample(NOW_MS, **{reading: hot_c})], [state], POLICY, NOW_MS, {GPU: H100})
        assert all(each.values["limit"] == own_c for each in found)
        return {each.fault_key for each in found}

    assert keys(own_c) == set()
    assert keys(own_c + 0.5) == {key}


@pytest.mark.parametrize("own_c", [0.0, -40.0, 999.0, float("nan")])
def test_a_maximum_that_no_gpu_has_leaves_the_policys(own_c: float) -> None:
    state = signal(EventKind.GPU_STATE, temperature_max_c=own_c, memory_temperature_max_c=own_c)
    seen = sample(NOW_MS, temperature_c=95.5, memory_temperature_c=105.5)
    found = check_once(NODE, [seen], [state], POLICY, NOW_MS, {GPU: H100})
    assert [each.values["limit"] for each in found] == [95.0, 105.0]
    well = sample(NOW_MS, temperature_c=95.0, memory_temperature_c=105.0)
    assert check_once(NODE, [well], [state], POLICY, NOW_MS, {GPU: H100}) == ()


def test_an_own_maximum_under_the_policys_strictest_counts_as_that_so_that_the_quick_check_passes_over_nothing() -> (
    None
):
    state = signal(EventKind.GPU_STATE, temperature_max_c=60.0, memory_temperature_max_c=60.0)
    seen = sample(NOW_MS, temperature_c=85.0, memory_temperature_c=95.0)
    assert is_quiet(watched_in(seen.values), seen.values, CHECK)
    assert check_once(NODE, [seen], [state], POLICY, NOW_MS, {GPU: H100}) == ()
    beside = sample(NOW_MS, temperature_c=86.0, memory_temperature_c=95.0)
    assert [each.fault_key for each in check_once(NODE, [beside], [state], POLICY, NOW_MS)] == ["temperature:gpu"]


def test_one_check_reports_all_that_needs_no_past() -> None:
    shadow = HealthPolicy.model_validate({"detectors": {"inforom": {"mode": "shadow"}, "power_limit": {"mode": "off"}}})
    state = signal(
        EventKind.GPU_STATE,
        inforom_valid=0.0,
        nvlink_links_down=2.0,
        power_limit_w=300.0,
        default_power_limit_w=700.0,
    )
    hot = sample(temperature_c=90.0)
    told = check_once(NODE, [hot], [state, signal(code=79)], shadow, NOW_MS, {GPU: A100})
    assert {each.fault_key for each in told} == {"temperature:gpu", "inforom", "nvlink_down", "xid:79"}
    assert [each.suppressed_by for each in told if each.fault_key == "inforom"] == [{Suppression.SHADOW}]
    assert check_once(NODE, [hot], [], shadow, NOW_MS, {GPU: H100}) == ()
