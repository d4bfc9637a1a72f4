"""The slow look at a GPU, against a driver whose every answer a test can change while the probe runs."""

import re
from typing import Any, Final

import pytest

from agents.probes.nvml_counters import ALONGSIDE
from agents.probes.nvml_gpm import GPM_METRICS as WHERE_IDLE
from muster.domain.evidence.state_readings import GPU_RATES, GPU_STATE
from tests.agents.fake_nvml.probed_host import DEADLINE_S, Hosts
from tests.agents.fake_nvml.state import Group

FROM_CHECKS = {"pcie_loaded_generation", "pcie_loaded_width", "idle_utilisation_percent"}
OF_PAIRS = {"p2p_peers", "p2p_not_ok", "p2p_not_ok_bits", "p2p_blamed"}
CORRUPT_INFOROM, UNKNOWN_ERROR = 14, 999


def one(hosts: Hosts, **readings: object) -> dict[str, Any]:
    """What one GPU with these readings says, after a check, as in the daemon."""
    host = hosts.healthy(num_gpus=1)
    for name, value in readings.items():
        setattr(host.state.gpus[0], name, value)
    host.check()
    (found,) = host.inspect()
    return found


def test_a_healthy_gpu_reports_every_state_and_counter_by_the_names_of_the_contract(hosts: Hosts) -> None:
    found = one(hosts)
    assert set(found["state"]) == set(GPU_STATE) - FROM_CHECKS - OF_PAIRS - set(WHERE_IDLE)
    told = {*found["counters"], *found["alongside"], *found["link_counters"]["0"]}
    assert told == set(GPU_RATES) - {"window_s", "link", "bad_windows"}
    assert set(found["alongside"]) == set(ALONGSIDE)
    assert len(found["link_counters"]) == 18
    assert (found["unsupported"], found["faults"]) == ([], {})


STATES: Final = {
    "sram_threshold_exceeded": 1,
    "remap_banks_max": 630,
    "remap_banks_high": 4,
    "remap_banks_partial": 3,
    "remap_banks_low": 2,
    "remap_banks_none": 1,
    "retired_pages_single_bit": 5,
    "retired_pages_double_bit": 2,
    "retired_pages_pending": 1,
    "unrepairable_memory": 1,
    "channel_repair_pending": 1,
    "tpc_repair_pending": 0,
    "inforom_valid": 1,
    "persistence_enabled": 0,
    "mig_enabled": 1,
    "ecc_enabled": 0,
    "power_limit_w": 550,
    "default_power_limit_w": 700,
    "application_clock_mhz": 1755,
    "default_application_clock_mhz": 1980,
    "temperature_slowdown_c": 89,
    "temperature_max_c": 87,
    "memory_temperature_max_c": 95,
    "pcie_max_generation": 5,
    "pcie_max_width": 8,
    "nvlink_links": 18,
    "nvlink_links_down": 2,
    "nvlink_down_bits": 1 << 16 | 1 << 17,
    "nvlink_effective_ber_exponent": 5.7,
    "nvlink_symbol_ber_exponent": 5.7,
    "nvlink_mb_per_s": 26_562,
    "nvlink_links_to_nothing": 3,
    "nvlink_to_nothing_bits": 0b111,
    "fabric_state": 3,
    "fabric_status": 0,
    "fabric_health_bits": 0x82,
    "fabric_clique": 7,
}
"""Of the GPU of ``test_states_come_in_their_units``, each in its unit, except for the fabric's own summary."""


def test_states_come_in_their_units(hosts: Hosts) -> None:
    found = one(
        hosts,
        sram_exceeded=1,
        remap_banks=(630, 4, 3, 2, 1),
        retired=(5, 2),
        retired_pending=1,
        unrepairable=1,
        repairs=(1, 0),
        ill_link=4,
        ill_ber=0x206,
        persistence=0,
        set_limit_mw=550_000,
        application_clock=1_755,
        mig_mode=1,
        ecc_mode=0,
        links_up=16,
        links_to_nothing=3,
        fabric_health=0x82,
        pcie_max_width=8,
    )
    summary = found["state"]["fabric_health_summary"]
    assert found["state"] == {**STATES, "fabric_health_summary": summary}


def test_counters_come_in_their_units(hosts: Hosts) -> None:
    found = one(
        hosts,
        pcie_replays=9,
        correctable_errors=4,
        ecc_corrected=(3, 30, 5, 50),
        held_down_ns=(2_500_000_000, 1_000_000_000, 500_000_000),
        symbol_errors=6,
        c2c_errors=(1, 2, 3),
        link_counters=(7, 5, 2, 3, 0),
        ill_link=11,
        ill_link_errors=100,
    )
    assert found["counters"] == {
        "pcie_replays": 9,
        "pcie_correctable_errors": 4,
        "ecc_corrected_sram": 3,
        "ecc_corrected_dram": 30,
        "sw_thermal_s": 2.5,
        "hw_thermal_s": 1,
        "power_brake_s": 0.5,
        "c2c_errors": 1,
        "c2c_replays": 2,
        "c2c_back_to_back_replays": 3,
    }
    assert found["alongside"] == {
        "pcie_generation": 5,
        "pcie_width": 16,
        "ecc_corrected_sram_total": 5,
        "ecc_corrected_dram_total": 50,
    }
    assert found["link_counters"]["0"] == {"crc_errors": 5, "replays": 7, "recoveries": 5, "symbol_errors": 6}
    assert found["link_counters"]["11"]["replays"] == 107


def test_what_a_gpu_does_not_support_is_named_and_never_zero(hosts: Hosts) -> None:
    unsupported = Group.SRAM | Group.HISTOGRAM | Group.RETIRED | Group.REMOTE | Group.FABRIC | Group.DURATIONS
    found = one(hosts, unsupported=unsupported | Group.SYMBOLS | Group.C2C)
    silent = {
        "sram_threshold_exceeded",
        *(name for name in GPU_STATE if name.startswith(("remap_banks_", "retired_pages_"))),
        "nvlink_links_to_nothing",
        "nvlink_to_nothing_bits",
        "nvlink_effective_ber_exponent",
        "nvlink_symbol_ber_exponent",
        "c2c_errors",
        "c2c_replays",
        "c2c_back_to_back_replays",
        "fabric_state",
        "sw_thermal_s",
        "hw_thermal_s",
        "power_brake_s",
    }
    assert set(found["unsupported"]) == silent
    assert not silent & {*found["state"], *found["counters"]}
    assert "symbol_errors" not in found["link_counters"]["0"]
    assert found["state"]["nvlink_links_down"] == 0
    assert found["faults"] == {}


def test_each_group_that_fails_is_a_fault_of_its_own_names(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    healthy = {*host.inspect()[0]["state"], *host.inspect()[0]["counters"]}
    host.state.gpus[0].failure_code = UNKNOWN_ERROR
    for group in (Group.SRAM, Group.HISTOGRAM, Group.UNREPAIRABLE, Group.PLACES, Group.FABRIC, Group.THRESHOLDS):
        host.state.gpus[0].failing = group
        (found,) = host.inspect()
        missing = healthy - {*found["state"], *found["counters"]}
        assert missing, group
        assert set(found["faults"]) >= missing - {
            "fabric_status",
            "fabric_health_bits",
            "fabric_health_summary",
            "fabric_clique",
        }
        assert all("NVML 999" in words for words in found["faults"].values())


def test_a_corrupt_inforom_is_no_failed_call_and_a_failed_call_no_corrupt_inforom(hosts: Hosts) -> None:
    assert one(hosts, inforom_code=CORRUPT_INFOROM)["state"]["inforom_valid"] == 0
    failed = one(hosts, inforom_code=UNKNOWN_ERROR)
    assert "inforom_valid" not in failed["state"]
    assert "NVML 999" in failed["faults"]["inforom_valid"]


def test_the_flash_of_the_board_is_not_read_with_each_check(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    assert [host.inspect()[0]["state"]["inforom_valid"] for _ in range(3)] == [1, 1, 1]
    assert host.state.gpus[0].num_validations == 1


@pytest.mark.parametrize("version", [2, 3])
def test_the_fabric_is_read_by_the_struct_that_the_driver_knows(hosts: Hosts, version: int) -> None:
    state = one(hosts, fabric_version=version, fabric_clique=41, fabric_health=0x20)["state"]
    assert (state["fabric_clique"], state["fabric_health_bits"], state["fabric_state"]) == (41, 0x20, 3)


@pytest.mark.parametrize("fabric_state", [0, 1, 2])
def test_before_its_registration_nothing_else_is_stated_of_the_fabric(hosts: Hosts, fabric_state: int) -> None:
    state = one(hosts, fabric_state=fabric_state, fabric_status=UNKNOWN_ERROR)["state"]
    assert state["fabric_state"] == fabric_state
    assert not {"fabric_status", "fabric_health_bits", "fabric_clique"} & set(state)


def test_an_older_driver_reports_what_it_knows(hosts: Hosts) -> None:
    (found,) = hosts.open(hosts.state(1), library="older").inspect()
    assert set(found["unsupported"]) == {
        "sram_threshold_exceeded",
        "unrepairable_memory",
        "channel_repair_pending",
        "tpc_repair_pending",
        *WHERE_IDLE,
    }
    assert found["faults"] == {}
    assert found["state"]["remap_banks_max"] == 640


def test_a_lost_gpu_and_one_that_hangs_hold_up_no_other(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=3)
    host.state.gpus[0].is_lost = 1
    host.state.gpus[1].hang_ms = 30_000
    lost, late, well = host.inspect()
    assert (lost["is_lost"], lost["state"]) == (True, {})
    assert (late["is_late"], late["state"]) == (True, {})
    (waited_s,) = re.findall(r"no answer for ([0-9.]+) s", late["faults"]["gpu"])
    assert float(waited_s) == pytest.approx(DEADLINE_S, rel=0.1), "the start of the call takes some of it"
    assert well["state"]["ecc_enabled"] == 1
    checks, _ = host.timed_check()
    assert checks[1]["is_late"], "one call a GPU at a time, whichever look it was made for"


@pytest.mark.parametrize(
    ("name", "is_reported"),
    [
        ("NVIDIA A100 80GB PCIe", False),
        ("Tesla V100-PCIE-32GB", False),
        ("NVIDIA H100 NVL", False),
        ("NVIDIA A30", False),
        ("NVIDIA A40", False),
        ("NVIDIA RTX A6000", False),
        ("NVIDIA GeForce RTX 3090", False),
        ("NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H200", True),
    ],
)
def test_links_of_a_card_that_were_never_up_have_no_bridge_and_those_of_a_board_are_down(
    hosts: Hosts, name: str, *, is_reported: bool
) -> None:
    found = one(hosts, name=name.encode(), links_up=0)
    assert ("nvlink_links_down" in found["state"]) is is_reported


def test_links_of_a_card_that_were_up_are_down_once_they_fell(hosts: Hosts) -> None:
    host = hosts.healthy()
    host.state.gpus[0].name = b"NVIDIA H100 NVL"
    host.inspect()
    host.state.gpus[0].links_up = 0
    assert host.inspect()[0]["state"]["nvlink_links_down"] == 18


def test_a_gpu_without_links_reports_it(hosts: Hosts) -> None:
    found = one(hosts, num_links=0)
    assert {"nvlink_links", "nvlink_links_down"} <= set(found["unsupported"])
    assert found["link_counters"] == {}


def test_the_inventory_names_the_other_end_of_each_link_that_is_up(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=2)
    host.state.gpus[0].links_up, host.state.gpus[0].links_to_nothing = 3, 1
    host.state.gpus[1].unsupported = Group.REMOTE
    first, second = host.ask("identify")["gpus"]
    assert first["nvlink_ends"] == {"0": "nothing", "1": "switch 00000000:05:00.0", "2": "switch 00000000:06:00.0"}
    assert second["nvlink_ends"] is None
    assert second["unsupported"] == ["nvlink_ends"]


def test_firmware_cuda_and_nvlink_domain_are_reported_in_words_and_followed(hosts: Hosts) -> None:
    found = one(hosts, vbios_build=7, fabric_cluster=0xABCD)
    assert found["words"] == {
        "model": "NVIDIA H100 80GB HBM3",
        "vbios_version": "96.00.A5.00.07",
        "gsp_firmware_version": "580.95.05",
        "inforom_version": "G520.0200.00.05",
        "board_part_number": "692-2G520-0200-000",
        "cuda_version": "12.8",
        "fabric_cluster": "abcd".rjust(32, "0"),
    }


def test_a_gpu_of_no_nvlink_domain_names_none(hosts: Hosts) -> None:
    assert "fabric_cluster" not in one(hosts)["words"]
    assert "fabric_cluster" not in one(hosts, fabric_state=2, fabric_cluster=1)["words"], "not registered yet"
    assert "fabric_cluster" not in one(hosts, unsupported=Group.FABRIC)["words"]


def test_profiling_counters_are_read_between_two_checks_an_idle_gpu(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    gpu = host.state.gpus[0]
    gpu.num_processes = 0
    gpu.gpm[:] = (12.5, 3.0, 100.0, 20.0, 5.0, 7.0)
    (first,) = host.inspect()
    assert WHERE_IDLE.keys().isdisjoint(first["state"]), "nothing to compare with yet"
    (second,) = host.inspect()
    assert {name: second["state"][name] for name in WHERE_IDLE} == {
        "idle_sm_percent": 12.5,
        "idle_dram_percent": 3.0,
        "idle_pcie_mib_per_s": 120.0,
        "idle_nvlink_mib_per_s": 12.0,
    }
    gpu.num_links = gpu.links_up = 0
    gpu.gpm[0] = float("nan")
    (without,) = host.inspect()
    assert without["state"].keys() & WHERE_IDLE.keys() == {"idle_dram_percent", "idle_pcie_mib_per_s"}
    assert {"idle_sm_percent", "idle_nvlink_mib_per_s"} <= set(without["unsupported"])
    assert gpu.num_gpm_kept == 1, "samples are given back"


def test_profiling_counters_are_never_read_while_a_program_computes(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    gpu = host.state.gpus[0]
    for _ in range(3):
        (found,) = host.inspect()
        assert WHERE_IDLE.keys().isdisjoint({*found["state"], *found["unsupported"], *found["faults"]})
    assert gpu.num_gpm_samples == 0
    gpu.num_processes = 0
    host.inspect()
    gpu.num_processes = 1
    host.inspect()
    assert (gpu.num_gpm_samples, gpu.num_gpm_kept) == (1, 0)
    gpu.num_processes = 0
    (found,) = host.inspect()
    assert WHERE_IDLE.keys().isdisjoint(found["state"]), "a program ran in between"


@pytest.mark.parametrize(("group", "field"), [(Group.GPM, "unsupported"), (Group.PROCESSES, "failing")])
def test_where_counters_or_programs_are_not_reported_none_are_read(hosts: Hosts, group: Group, field: str) -> None:
    host = hosts.healthy(num_gpus=1)
    gpu = host.state.gpus[0]
    gpu.num_processes, gpu.failure_code = 0, UNKNOWN_ERROR
    setattr(gpu, field, group)
    host.inspect()
    (found,) = host.inspect()
    assert WHERE_IDLE.keys().isdisjoint(found["state"])
    assert set(WHERE_IDLE) <= set(found["unsupported"]) or field == "failing"
    assert gpu.num_gpm_samples == 0


def test_a_mig_gpu_a_release_and_a_failing_read_keep_no_sample(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    gpu = host.state.gpus[0]
    gpu.num_processes, gpu.mig_mode = 0, 1
    host.inspect()
    assert gpu.num_gpm_samples == 0
    gpu.mig_mode = 0
    host.inspect()
    assert gpu.num_gpm_kept == 1
    host.ask("release")
    assert gpu.num_gpm_kept == 0
    gpu.failing, gpu.failure_code = Group.GPM, UNKNOWN_ERROR
    (found,) = host.inspect()
    assert set(WHERE_IDLE) <= set(found["faults"])
    assert gpu.num_gpm_kept == 0


def test_a_link_that_went_down_is_named_with_what_was_at_its_other_end(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    host.check()
    (found,) = host.inspect()
    assert "nvlink_ends_down" not in found["words"]
    host.state.gpus[0].links_up = 16
    (found,) = host.inspect()
    assert found["words"]["nvlink_ends_down"] == "16/switch/0000:04:00.0+17/switch/0000:05:00.0"


def test_of_a_link_that_was_never_up_is_unknown_where_it_leads(hosts: Hosts) -> None:
    found = one(hosts, links_up=17)
    assert found["words"]["nvlink_ends_down"] == "17/unknown"
    many = one(hosts, links_up=4)
    assert many["words"]["nvlink_ends_down"].count("+") == 4, "few enough for a text"


def test_gpus_that_cannot_read_each_other_are_reported_with_the_one_to_blame(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=4)
    host.state.gpus[2].p2p_status = 6
    pairs = [{name: each["state"][name] for name in OF_PAIRS} for each in host.inspect()]
    well = {"p2p_peers": 3, "p2p_not_ok": 1, "p2p_not_ok_bits": 0b100, "p2p_blamed": 0}
    assert pairs == [well, well, {**well, "p2p_not_ok": 3, "p2p_not_ok_bits": 0b1011, "p2p_blamed": 3}, well]


def test_a_gpu_that_is_lost_or_split_is_in_no_pair(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=4)
    host.state.gpus[1].is_lost = 1
    host.state.gpus[2].mig_mode = 1
    found = {each["index"]: each for each in host.inspect()}
    assert (found[1]["is_lost"], found[1]["state"]) == (True, {})
    assert "p2p_peers" not in found[2]["state"]
    assert found[0]["state"]["p2p_peers"] == found[3]["state"]["p2p_peers"] == 1


def test_a_driver_that_does_not_know_pairs_costs_nothing_else(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=2)
    host.state.gpus[1].hang_ms = int(1000 * DEADLINE_S) + 2000
    found = {each["index"]: each for each in host.inspect()}
    assert found[1]["is_late"]
    assert "nvlink_links" in found[0]["state"]
    assert "p2p_peers" not in found[0]["state"]
