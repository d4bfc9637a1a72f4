"""The NVML probe against a driver whose every answer a test can change while the probe runs."""

import subprocess
import time
from typing import Any

import pytest

from agents.rates import MIN_WINDOW_S
from muster.domain.gpu.metrics import FROM_DCGM_ALONE, METRICS
from tests.agents.fake_nvml.probed_host import DEADLINE_S, Hosts, Libraries, ProbedHost, value
from tests.agents.fake_nvml.state import Group, uuid_of
from tests.waiting import wait_until

NOT_SUPPORTED, TIMEOUT, DRIVER_NOT_LOADED, NO_PERMISSION, RESET_REQUIRED = 3, 10, 9, 4, 16


RATES = ("nvlink_sent_bytes_per_s", "nvlink_received_bytes_per_s")
UNKNOWN_AT_FIRST = FROM_DCGM_ALONE | set(RATES)


def lacking(found: dict[str, Any]) -> set[str]:
    return {metric.name for metric in METRICS if value(found, metric.name) is None}


def test_a_healthy_gpu_gives_every_metric(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=8)
    host.check()  # rates are known from the second check on
    checks = host.check(after_s=MIN_WINDOW_S)
    assert [found["gpu_uuid"] for found in checks] == [uuid_of(index) for index in range(8)]
    for found in checks:
        assert found["unsupported"] == []
        assert found["faults"] == {}
        assert not found["is_lost"]
        assert lacking(found) == FROM_DCGM_ALONE
        assert len(found["values"]) == len(METRICS)


def test_values_come_in_the_units_of_their_metrics(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    gpu = host.state.gpus[0]
    gpu.link_counters = (7, 5, 2, 3, 0)
    gpu.clock_reasons = 0x24
    (found,) = host.check()
    expected = {
        "temperature_c": 41,
        "memory_temperature_c": 52,
        "temperature_margin_c": 46,
        "power_w": 312.5,
        "power_limit_w": 700,
        "energy_j": 5_000,
        "sm_clock_mhz": 1_980,
        "memory_clock_mhz": 2_619,
        "clock_event_reasons": 0x24,
        "utilisation_percent": 87,
        "memory_utilisation_percent": 34,
        "memory_used_mib": 4_096,
        "num_processes": 1,
        "nvlink_active_links": 18,
        "nvlink_crc_errors": 18 * (2 + 3),
        "nvlink_replays": 18 * 7,
        "nvlink_recoveries": 18 * 5,
        "recovery_action": 0,
        "pcie_generation": 5,
        "pcie_width": 16,
    }
    assert {name: value(found, name) for name in expected} == expected


def test_a_driver_that_was_let_go_of_is_taken_up_again_with_its_events(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=2)
    before = [found["gpu_uuid"] for found in host.check()]
    meanwhile = host.ask("release")
    assert [(found["gpu_uuid"], found["is_late"], found["is_lost"]) for found in meanwhile] == [
        (uuid, True, False) for uuid in before
    ], "the sampler continues: its GPUs are late, and the host is not silent"
    assert {found["faults"]["gpu"] for found in meanwhile} == {"the agent has released the driver for a repair"}
    checks = host.check()
    assert [(found["gpu_uuid"], found["is_lost"], found["faults"]) for found in checks] == [
        (uuid, False, {}) for uuid in before
    ]
    assert host.events(0.2) == [], "nothing was lost or found meanwhile"
    host.state.gpus[1].pending_xid = 48
    assert [(event["gpu_uuid"], event["code"]) for event in host.events()] == [(before[1], 48)]


def test_a_gpu_that_was_lost_before_is_no_late_one_while_the_driver_is_let_go_of(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=3)
    host.check()
    host.state.gpus[1].is_lost = 1
    host.state.num_gpus = 2
    host.check()
    lost = {event["gpu_uuid"] for event in host.events() if event["kind"] == "gpu_lost"}
    assert lost == {uuid_of(1), uuid_of(2)}
    meanwhile = {found["gpu_uuid"]: (found["is_lost"], found["is_late"]) for found in host.ask("release")}
    assert meanwhile == {uuid_of(0): (False, True), uuid_of(1): (True, False), uuid_of(2): (True, False)}
    assert host.events(0.2) == [], "and is not lost again afterwards"


def test_the_inventory_reports_what_each_gpu_is(hosts: Hosts) -> None:
    inventory = hosts.healthy(num_gpus=2).ask("identify")
    assert inventory["driver_version"] == "580.95.05"
    assert inventory["cuda_version"] == "12.8"
    second = inventory["gpus"][1]
    assert second["uuid"] == uuid_of(1)
    assert second["index"] == 1
    assert second["model"] == "NVIDIA H100 80GB HBM3"
    assert second["serial"] == "1653000000001"
    assert second["compute_capability"] == "9.0"
    assert second["memory_bytes"] == 81_559 * 1024 * 1024
    assert second["pci_bus_id"] == "00000000:11:00.0"
    assert second["module_id"] == 2
    assert second["num_nvlinks"] == 18
    assert second["is_ecc_enabled"] is True
    assert second["is_mig_enabled"] is False
    assert (second["min_power_limit_w"], second["max_power_limit_w"]) == (200, 700)
    assert second["unsupported"] == []
    assert second["faults"] == {}


def test_growing_ecc_counters_are_seen_at_the_next_check(hosts: Hosts) -> None:
    host = hosts.healthy()
    assert value(host.check()[1], "ecc_uncorrected_volatile") == 0
    host.state.gpus[1].ecc[2] = 3  # uncorrected, volatile
    host.state.gpus[1].ecc[1] = 40  # corrected, aggregate
    first, second = host.check()
    assert value(first, "ecc_uncorrected_volatile") == 0
    assert value(second, "ecc_uncorrected_volatile") == 3
    assert value(second, "ecc_corrected_aggregate") == 40


def test_an_xid_arrives_once_and_names_its_gpu(hosts: Hosts) -> None:
    host = hosts.healthy()
    host.state.gpus[1].pending_xid = 95
    (event,) = host.events()
    assert (event["kind"], event["source"], event["code"]) == ("xid", "nvml", 95)
    assert event["gpu_uuid"] == uuid_of(1)
    assert 0 < event["values"]["since_boot_s"] <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert host.events(timeout_s=0.2) == []


def test_the_same_xid_twice_is_two_events_of_different_origin(hosts: Hosts) -> None:
    host = hosts.healthy()
    origins = set()
    for _ in range(2):
        host.state.gpus[0].pending_xid = 31
        origins |= {event["origin"] for event in host.events()}
    assert len(origins) == 2


def test_a_gpu_that_refuses_event_registration_leaves_the_others_received(hosts: Hosts) -> None:
    state = hosts.state(3)
    state.gpus[0].failing, state.gpus[0].failure_code = Group.REGISTRATION, 999
    state.gpus[1].unsupported = Group.EVENTS
    host = hosts.open(state)
    first, second, third = host.ask("identify")["gpus"]
    assert "xid_events" in first["faults"]
    assert second["unsupported"] == ["xid_events"]
    assert third["faults"] == {}
    state.gpus[2].pending_xid = 48
    assert [event["gpu_uuid"] for event in host.events()] == [uuid_of(2)]


def test_what_a_gpu_does_not_support_is_named_and_never_zero(hosts: Hosts) -> None:
    host = hosts.healthy()
    host.state.gpus[0].unsupported = Group.ECC | Group.MEMORY_TEMPERATURE | Group.ENERGY
    first, second = host.check()
    expected = {name.name for name in METRICS if name.name.startswith("ecc_")} | {"memory_temperature_c", "energy_j"}
    assert set(first["unsupported"]) == expected
    assert all(value(first, name) is None for name in expected)
    assert first["faults"] == {}
    assert second["unsupported"] == []


def test_an_identity_without_serial_reports_it(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    host.state.gpus[0].unsupported = Group.SERIAL | Group.MIG | Group.MODULE
    (gpu,) = host.ask("identify")["gpus"]
    assert (gpu["serial"], gpu["is_mig_enabled"], gpu["module_id"]) == (None, None, None)
    assert set(gpu["unsupported"]) == {"serial", "is_mig_enabled", "module_id"}


def test_a_call_that_fails_is_a_fault_in_the_drivers_words(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    host.state.gpus[0].failing, host.state.gpus[0].failure_code = Group.REMAP | Group.RECOVERY, RESET_REQUIRED
    (found,) = host.check()
    assert set(found["faults"]) >= {"remap_pending", "remap_failure", "recovery_action"}
    assert "NVML 16" in found["faults"]["recovery_action"]
    assert value(found, "remap_pending") is None
    assert not found["is_lost"]


def test_an_older_driver_is_queried_by_its_older_functions(hosts: Hosts) -> None:
    host = hosts.open(hosts.state(1), library="older")
    host.state.gpus[0].clock_reasons = 0x8
    (found,) = host.check()
    assert value(found, "temperature_c") == 41
    assert value(found, "clock_event_reasons") == 0x8
    assert value(found, "memory_used_mib") == 4_096
    assert found["unsupported"] == ["temperature_margin_c"]
    assert value(found, "temperature_margin_c") is None


@pytest.mark.parametrize("value_type", range(7))
def test_a_field_is_read_by_the_type_that_it_states(hosts: Hosts, value_type: int) -> None:
    host = hosts.healthy(num_gpus=1)
    host.state.gpus[0].field_type, host.state.gpus[0].recovery_action = value_type, 2
    (found,) = host.check()
    assert value(found, "recovery_action") == 2
    assert value(found, "memory_temperature_c") == 52


def test_a_field_of_unknown_type_is_a_fault(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    host.state.gpus[0].field_type = 99
    (found,) = host.check()
    assert value(found, "recovery_action") is None
    assert "unknown value type 99" in found["faults"]["recovery_action"]


def test_a_link_that_is_down_is_not_an_unsupported_one(hosts: Hosts) -> None:
    host = hosts.healthy()
    host.state.gpus[0].links_up = 17
    host.state.gpus[1].num_links = 0
    first, second = host.check()
    assert value(first, "nvlink_active_links") == 17
    assert value(second, "nvlink_active_links") is None
    assert {"nvlink_active_links", "nvlink_replays"} <= set(second["unsupported"])


def test_the_sum_of_link_errors_does_not_fall_when_a_link_goes_down(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    host.state.gpus[0].link_counters[0] = 10
    assert value(host.check()[0], "nvlink_replays") == 180
    host.state.gpus[0].links_up = 16
    assert value(host.check()[0], "nvlink_replays") == 180


def test_newer_links_are_counted_by_their_fields(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    gpu = host.state.gpus[0]
    gpu.unsupported, gpu.link_counters = Group.LINK_COUNTERS, (4, 2, 1, 0, 0)
    (found,) = host.check()
    assert value(found, "nvlink_crc_errors") == 18
    assert value(found, "nvlink_replays") == 72
    assert value(found, "nvlink_recoveries") == 36
    assert found["unsupported"] == []


def rates_after(host: ProbedHost, *, sent: int, received: int) -> list[float | None]:
    """Return the rates of the first GPU a second later, in which each link has moved so many bytes."""
    gpu = host.state.gpus[0]
    gpu.link_bytes = (gpu.link_bytes[0] + sent, gpu.link_bytes[1] + received)
    (found,) = host.check(after_s=1.0)
    return [value(found, name) for name in RATES]


@pytest.mark.parametrize("unsupported", [0, Group.LINK_COUNTERS], ids=["to_nvlink_4", "from_nvlink_5"])
def test_bytes_over_links_are_rates_since_the_check_before(hosts: Hosts, unsupported: int) -> None:
    """A counter is exact beyond 2^53, and what each link has moved before is no rate."""
    host = hosts.healthy(num_gpus=1)
    gpu = host.state.gpus[0]
    gpu.unsupported, gpu.field_type, gpu.link_bytes = unsupported, 3, (1 << 60, 1 << 60)
    (first,) = host.check()
    assert [value(first, name) for name in RATES] == [None, None]
    assert first["unsupported"] == []
    assert rates_after(host, sent=1 << 30, received=1 << 20) == [18 << 30, 18 << 20]


def test_a_link_that_comes_up_or_a_counter_that_was_reset_is_no_rate(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    gpu = host.state.gpus[0]
    gpu.links_up, gpu.field_type, gpu.link_bytes = 17, 3, (1 << 50, 1 << 50)
    host.check()
    gpu.links_up = 18
    assert rates_after(host, sent=1 << 20, received=0) == [17 << 20, 0], "the link that came up has no rate yet"
    assert rates_after(host, sent=-(1 << 40), received=1 << 49) == [None, None], "it fell, and leapt"


def test_a_gpu_that_counts_no_bytes_gives_none(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    host.state.gpus[0].unsupported = Group.LINK_BYTES
    host.check()
    assert rates_after(host, sent=1 << 30, received=0) == [None, None]
    (found,) = host.check()
    assert found["unsupported"] == sorted(RATES)


def test_a_burn_in_computes_on_a_listed_gpu_by_cuda_and_on_no_other(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    found = host.ask("compute_device", gpu=uuid_of(0))
    assert (found["kind"], found["is_wrong"], found["rates"]) == ("cuda", False, {})
    assert "GPU-nowhere" in host.ask("compute_device", gpu="GPU-nowhere")["error"]


def test_only_the_lost_gpu_is_lost(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=4)
    host.state.gpus[2].is_lost = 1
    checks = host.check()
    assert [found["is_lost"] for found in checks] == [False, False, True, False]
    assert set(checks[2]["values"]) == {None}
    assert lacking(checks[3]) == UNKNOWN_AT_FIRST


def test_loss_and_return_are_reported_once_each(hosts: Hosts) -> None:
    host = hosts.healthy()
    host.state.gpus[0].is_lost = 1
    host.check()
    host.check()
    (lost,) = host.events()
    assert (lost["kind"], lost["gpu_uuid"], lost["source"]) == ("gpu_lost", uuid_of(0), "agent")
    host.state.gpus[0].is_lost = 0
    host.check()
    assert [event["kind"] for event in host.events()] == ["gpu_found"]


def test_a_gpu_lost_before_the_start_is_counted_without_a_name(hosts: Hosts) -> None:
    state = hosts.state(2)
    state.gpus[1].is_lost = 1
    host = hosts.open(state)
    inventory = host.ask("identify")
    assert [gpu["uuid"] for gpu in inventory["gpus"]] == [uuid_of(0)]
    assert [nameless["index"] for nameless in inventory["nameless"]] == [1]
    assert len(host.check()) == 1
    state.gpus[1].is_lost = 0
    assert len(host.check()) == 2
    assert [(event["kind"], event["gpu_uuid"]) for event in host.events()] == [("gpu_found", uuid_of(1))]


def test_a_gpu_that_hangs_holds_up_no_other(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=3)
    host.state.gpus[1].hang_ms = 30_000
    checks, seconds = host.timed_check()
    assert seconds < 2 * DEADLINE_S
    assert [found["is_late"] for found in checks] == [False, True, False]
    assert "no answer" in checks[1]["faults"]["gpu"]
    assert not checks[1]["is_lost"]
    assert lacking(checks[0]) == UNKNOWN_AT_FIRST


def test_a_hanging_gpu_is_not_queried_again_until_it_returns(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=2)
    host.state.gpus[1].hang_ms = 10_000
    host.check()
    host.state.gpus[1].hang_ms = 0
    checks, seconds = host.timed_check()
    assert checks[1]["is_late"]
    assert seconds < DEADLINE_S
    wait_until(lambda: not host.check()[1]["is_late"])
    assert lacking(host.check()[1]) == UNKNOWN_AT_FIRST


def test_a_hanging_gpu_does_not_hold_up_the_end(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=2, is_fresh=True)
    host.state.gpus[0].hang_ms = 60_000
    host.check()
    host.ask("close")
    assert host.process.stdin is not None
    host.process.stdin.close()
    assert host.process.wait(timeout=50) == 0


def test_a_gpu_that_is_no_longer_listed_is_lost_and_the_count_is_reported(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=4)
    host.check()
    host.state.num_gpus = 3
    checks = host.check()
    assert [found["is_lost"] for found in checks] == [False, False, False, True]
    events = {event["kind"]: event for event in host.events()}
    assert events["gpu_count"]["values"] == {"before": 4, "now": 3}
    assert events["gpu_lost"]["gpu_uuid"] == uuid_of(3)


def test_a_gpu_that_appears_is_found_and_received(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    host.state.num_gpus = 2
    assert len(host.check()) == 2
    assert {event["kind"] for event in host.events()} == {"gpu_count", "gpu_found"}
    host.state.gpus[1].pending_xid = 79
    assert [event["gpu_uuid"] for event in host.events()] == [uuid_of(1)]


def test_a_host_without_a_driver_is_reported_so(hosts: Hosts) -> None:
    host = hosts.open(hosts.state(1), library=None)
    assert "there is no NVIDIA driver on this host" in host.opening["error"]
    assert host.opening["suggestion"]


@pytest.mark.parametrize(
    ("code", "words"), [(DRIVER_NOT_LOADED, "driver is not loaded"), (NO_PERMISSION, "may not call the NVIDIA driver")]
)
def test_a_driver_that_does_not_start_states_why(hosts: Hosts, code: int, words: str) -> None:
    state = hosts.state(1)
    state.init_code = code
    assert words in hosts.open(state).opening["error"]


def test_a_driver_that_goes_away_is_an_error_of_the_host_not_of_each_gpu(hosts: Hosts) -> None:
    host = hosts.healthy()
    host.state.init_code = DRIVER_NOT_LOADED
    assert "driver is not loaded" in host.ask("check")["error"]
    host.state.init_code = 0
    assert len(host.check()) == 2


def test_a_driver_that_went_away_can_be_let_go_of(hosts: Hosts) -> None:
    host = hosts.healthy()
    host.state.init_code = DRIVER_NOT_LOADED
    assert host.ask("close") is None


def test_a_gpu_that_hangs_from_the_start_is_named_once_it_answers(hosts: Hosts) -> None:
    state = hosts.state(3)
    state.gpus[1].hang_ms = 12_000
    host = hosts.open(state)
    assert [nameless["index"] for nameless in host.ask("identify")["nameless"]] == [1]
    assert [found["gpu_uuid"] for found in host.check()] == [uuid_of(0), uuid_of(2)]
    state.gpus[1].hang_ms = 0
    wait_until(lambda: len(host.check()) == 3)
    assert not any(found["is_lost"] or found["is_late"] for found in host.check())


def test_a_gpu_that_hangs_while_the_count_changes_is_not_lost(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=2)
    host.state.gpus[0].hang_ms = 30_000
    host.state.num_gpus = 3
    checks = host.check()
    assert [(found["is_late"], found["is_lost"]) for found in checks] == [(True, False), (False, False), (False, False)]
    assert {event["kind"] for event in host.events()} == {"gpu_count", "gpu_found"}


def test_an_unsupported_reading_costs_no_other(hosts: Hosts) -> None:
    host = hosts.healthy(num_gpus=1)
    for group in Group:
        host.state.gpus[0].unsupported = group
        (found,) = host.check()
        assert lacking(found) - UNKNOWN_AT_FIRST == set(found["unsupported"]) - set(RATES)
        assert found["faults"] == {}


def test_the_fake_exports_just_what_the_probe_requests(hosts: Hosts, libraries: Libraries) -> None:
    asked = {"nvmlErrorString"}  # for codes that pynvml has no words for
    for library in ("today", "older"):
        host = hosts.open(hosts.state(2), library=library)
        host.state.gpus[0].num_processes = 0  # profiling counters are read of idle GPUs alone
        for command in ("identify", "check", "inspect", "inspect", "close"):
            host.ask(command)
        asked |= set(host.ask("asked"))
    listing = subprocess.run(
        ["/usr/bin/env", "nm", "-D", "--defined-only", str(libraries.today / "libnvidia-ml.so.1")],
        capture_output=True,
        text=True,
        check=True,
    )
    exported = {line.split()[-1] for line in listing.stdout.splitlines()}
    assert exported == asked
