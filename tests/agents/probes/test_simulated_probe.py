"""The simulated probe: repeatable readings, and faults that a file adds and removes."""

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.probes.faults import Fault, FaultFileError, clear_faults, read_faults, write_fault
from agents.probes.interface import GpuCheck, Probe, ProbeError
from agents.probes.profiles import A100, H100, PROFILES, HardwareProfile
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.gpu.metrics import FROM_DCGM_ALONE, METRICS, NUM_METRICS, value_of
from muster.domain.ids import GpuUuid

NOW_MS = 1_790_000_000_000
UUIDS = simulated_uuids(4)
BUSY: Callable[[GpuUuid], float | None] = lambda _uuid: 1.0  # noqa: E731  # a constant, named


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    return tmp_path / "faults.json"


def probe_of(faults: Path | None = None, profile: HardwareProfile = H100) -> SimulatedProbe:
    return SimulatedProbe(profile, UUIDS, faults_path=faults, activity=BUSY)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def check_of(probe: Probe, index: int = 0) -> GpuCheck:
    return probe.check(now_ms())[index]


def xid(code: int, *, is_in_kernel_log: bool = False) -> Fault:
    return Fault(gpu=UUIDS[0], kind="xid", code=code, is_in_kernel_log=is_in_kernel_log)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_each_profile_gives_every_metric_or_names_it_unsupported(profile: HardwareProfile) -> None:
    for found in SimulatedProbe(profile, UUIDS).check(NOW_MS):
        missing = {metric.name for metric in METRICS if value_of(found.values, metric.name) is None}
        assert missing - FROM_DCGM_ALONE == found.unsupported == profile.unsupported
        assert missing >= FROM_DCGM_ALONE
        assert len(found.values) == NUM_METRICS


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_an_identity_is_whole_and_states_that_it_is_simulated(profile: HardwareProfile) -> None:
    inventory = SimulatedProbe(profile, UUIDS).identify()
    assert inventory.is_simulated
    assert [gpu.uuid for gpu in inventory.gpus] == list(UUIDS)
    for gpu in inventory.gpus:
        assert gpu.serial is not None
        assert gpu.serial.startswith("SIM-")
        assert None not in dataclasses.astuple(gpu)


@given(seed=st.integers(0, 1 << 32), offset_s=st.integers(0, 10_000_000))
def test_the_same_seed_and_time_give_the_same_readings(seed: int, offset_s: int) -> None:
    at_ms = NOW_MS + 1000 * offset_s
    first, second = (SimulatedProbe(H100, UUIDS, seed=seed).check(at_ms) for _ in range(2))
    assert first == second


@given(seed=st.integers(0, 1 << 32), offset_s=st.integers(0, 10_000_000))
def test_healthy_readings_stay_within_what_the_board_can_do(seed: int, offset_s: int) -> None:
    for found in SimulatedProbe(H100, UUIDS, seed=seed).check(NOW_MS + 1000 * offset_s):
        readings = {metric.name: value_of(found.values, metric.name) or 0.0 for metric in METRICS}
        assert 0 < readings["power_w"] <= H100.power_limit_w
        assert 20 <= readings["temperature_c"] < H100.slowdown_c
        assert 0 <= readings["utilisation_percent"] <= 100
        assert readings["memory_used_mib"] <= H100.memory_mib
        assert all(readings[name] == 0 for name in readings if name.startswith(("ecc_", "remap")))


def test_other_seeds_give_other_readings() -> None:
    assert SimulatedProbe(H100, UUIDS, seed=1).check(NOW_MS) != SimulatedProbe(H100, UUIDS, seed=2).check(NOW_MS)


def test_a_gpu_works_and_rests_in_turn() -> None:
    probe = SimulatedProbe(H100, UUIDS)
    powers = [value_of(probe.check(NOW_MS + 10_000 * step)[0].values, "power_w") or 0 for step in range(120)]
    assert min(powers) < 100
    assert max(powers) > 600


def test_energy_only_grows_and_follows_power() -> None:
    probe = probe_of()
    first, second = (probe.check(NOW_MS + 10_000 * step)[0] for step in (0, 1))
    grown_j = (value_of(second.values, "energy_j") or 0) - (value_of(first.values, "energy_j") or 0)
    assert grown_j == pytest.approx(10 * (value_of(second.values, "power_w") or 0))


def test_a_new_xid_is_reported_within_50_ms(faults: Path) -> None:
    probe = probe_of(faults)
    seen_s: list[float] = []

    def listen() -> None:
        if probe.events(timeout_s=60):
            seen_s.append(time.monotonic())

    delays_s = []
    for code in (48, 63, 94, 95, 79):
        listener = threading.Thread(target=listen)
        listener.start()
        time.sleep(0.03)
        written_s = time.monotonic()
        write_fault(faults, xid(code))
        listener.join()
        delays_s.append(seen_s[-1] - written_s)
        probe.events(timeout_s=0)
    assert sorted(delays_s)[1] < 0.05, delays_s  # not each: other processes share this machine


def test_an_xid_is_reported_once_and_keeps_its_origin_over_a_restart(faults: Path) -> None:
    written = write_fault(faults, xid(95))
    probe = probe_of(faults)
    (event,) = probe.events(timeout_s=1)
    assert (event.kind, event.code, event.gpu_uuid) == (EventKind.XID, 95, UUIDS[0])
    assert event.at_ms == written.at_ms
    probe.check(now_ms())
    assert probe.events(timeout_s=0.1) == ()
    assert [again.origin for again in probe_of(faults).events(timeout_s=1)] == [event.origin]


def test_a_check_of_a_moment_before_the_fault_does_not_report_it_twice(faults: Path) -> None:
    probe = probe_of(faults)
    written = write_fault(faults, xid(95))
    assert len(probe.events(timeout_s=1)) == 1
    probe.check(written.at_ms - 1_000)
    assert probe.events(timeout_s=0.1) == ()


def test_the_kernel_log_reports_the_same_xid_as_another_source(faults: Path) -> None:
    write_fault(faults, xid(95, is_in_kernel_log=True))
    by_driver, by_log = probe_of(faults).events(timeout_s=1)
    assert (by_driver.source, by_log.source) == (Source.NVML, Source.KERNEL_LOG)
    assert by_driver.code == by_log.code == 95
    assert by_driver.origin != by_log.origin
    assert by_log.text.startswith("NVRM: Xid (PCI:0000:10:00): 95,")


@pytest.mark.parametrize("code", [48, 94, 95])
def test_a_memory_xid_also_shows_in_the_ecc_counters(faults: Path, code: int) -> None:
    write_fault(faults, xid(code))
    found = check_of(probe_of(faults))
    assert value_of(found.values, "ecc_uncorrected_volatile") == 1
    assert value_of(found.values, "ecc_uncorrected_aggregate") == 1
    assert value_of(found.values, "recovery_action") in {1, 4}


def test_an_xid_of_a_program_shows_in_no_counter(faults: Path) -> None:
    write_fault(faults, xid(31))
    assert value_of(check_of(probe_of(faults)).values, "ecc_uncorrected_volatile") == 0


def test_a_gpu_without_a_metric_does_not_get_it_by_a_fault(faults: Path) -> None:
    write_fault(faults, xid(95))
    found = check_of(probe_of(faults, A100))
    assert value_of(found.values, "recovery_action") is None
    assert value_of(found.values, "ecc_uncorrected_volatile") == 1


@pytest.mark.parametrize(
    ("fault", "metric", "expected"),
    [
        ({"kind": "ecc_uncorrected", "count": 3}, "ecc_uncorrected_volatile", 3),
        ({"kind": "ecc_corrected", "count": 900}, "ecc_corrected_volatile", 900),
        ({"kind": "row_remap_pending"}, "remap_pending", 1),
        ({"kind": "row_remap_failure"}, "remap_failure", 1),
        ({"kind": "clock_event", "bits": 0x80}, "clock_event_reasons", 0x80),
        ({"kind": "heat", "temperature_c": 95}, "temperature_c", 95),
        ({"kind": "heat", "temperature_c": 95}, "temperature_margin_c", -8),
        ({"kind": "heat", "temperature_c": 95}, "clock_event_reasons", 0x40),
        ({"kind": "nvlink_down", "count": 2}, "nvlink_active_links", 16),
    ],
)
def test_each_fault_shows_in_its_metric_on_its_gpu_alone(
    faults: Path, fault: dict[str, object], metric: str, expected: float
) -> None:
    probe = probe_of(faults)
    healthy = value_of(check_of(probe, 1).values, metric)
    write_fault(faults, Fault(gpu=UUIDS[0], **fault))  # type: ignore[arg-type]
    assert value_of(check_of(probe, 0).values, metric) == expected
    assert value_of(check_of(probe, 1).values, metric) == pytest.approx(healthy, abs=5)


def test_a_lost_gpu_gives_nothing_and_comes_back_when_its_fault_is_cleared(faults: Path) -> None:
    probe = probe_of(faults)
    write_fault(faults, Fault(gpu=UUIDS[2], kind="lost"))
    (lost,) = probe.events(timeout_s=1)
    assert (lost.kind, lost.gpu_uuid) == (EventKind.GPU_LOST, UUIDS[2])
    checks = probe.check(now_ms())
    assert [found.is_lost for found in checks] == [False, False, True, False]
    assert set(checks[2].values) == {None}
    assert clear_faults(faults, UUIDS[2]) == 1
    assert [event.kind for event in probe.events(timeout_s=1)] == [EventKind.GPU_FOUND]
    assert not check_of(probe, 2).is_lost


def test_xid_79_takes_the_gpu_off_the_bus(faults: Path) -> None:
    write_fault(faults, xid(79))
    probe = probe_of(faults)
    assert {event.kind for event in probe.events(timeout_s=1)} == {EventKind.XID, EventKind.GPU_LOST}
    assert check_of(probe).is_lost


def test_a_late_gpu_is_neither_lost_nor_read(faults: Path) -> None:
    write_fault(faults, Fault(gpu=UUIDS[0], kind="late"))
    probe = probe_of(faults)
    found = check_of(probe)
    assert found.is_late
    assert not found.is_lost
    assert set(found.values) == {None}
    assert probe.events(timeout_s=0.05) == ()


def test_a_fault_of_later_waits_for_its_time(faults: Path) -> None:
    clock = [NOW_MS]
    probe = SimulatedProbe(H100, UUIDS, faults_path=faults, wall_ms=lambda: clock[0])
    write_fault(faults, Fault(gpu=UUIDS[0], kind="xid", code=95, at_ms=NOW_MS + 5_000))
    assert probe.events(timeout_s=0.05) == ()
    clock[0] += 5_000
    assert [event.at_ms for event in probe.events(timeout_s=1)] == [NOW_MS + 5_000]


def test_faults_of_another_hosts_gpus_change_nothing(faults: Path) -> None:
    write_fault(faults, Fault(gpu="GPU-of-another-host", kind="lost"))
    probe = probe_of(faults)
    assert probe.events(timeout_s=0.05) == ()
    assert not any(found.is_lost for found in probe.check(now_ms()))


def test_a_broken_file_leaves_what_was_known(faults: Path) -> None:
    write_fault(faults, Fault(gpu=UUIDS[0], kind="row_remap_pending"))
    probe = probe_of(faults)
    assert value_of(check_of(probe).values, "remap_pending") == 1
    faults.write_text('{"faults": [{"gpu": "x", "kind": "no such kind"}]}')
    assert value_of(check_of(probe).values, "remap_pending") == 1
    with pytest.raises(FaultFileError, match="no document of faults"):
        read_faults(faults)


def test_writers_at_once_lose_no_fault(faults: Path) -> None:
    writers = [threading.Thread(target=write_fault, args=(faults, xid(code))) for code in range(1, 41)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    written = read_faults(faults)
    assert {fault.code for fault in written} == set(range(1, 41))
    assert len({fault.id for fault in written}) == 40


def test_clearing_one_gpu_leaves_the_faults_of_others(faults: Path) -> None:
    for uuid in UUIDS[:2]:
        write_fault(faults, Fault(gpu=uuid, kind="lost"))
    assert clear_faults(faults, UUIDS[0]) == 1
    assert [fault.gpu for fault in read_faults(faults)] == [UUIDS[1]]
    assert clear_faults(faults) == 1
    assert read_faults(faults) == ()


def test_faults_of_computing_show_in_what_a_burn_in_computes_on_and_in_no_reading(faults: Path) -> None:
    probe = probe_of(faults)
    sound = probe.compute_device(UUIDS[0])
    assert (sound.kind, sound.is_simulated, sound.is_wrong) == ("cpu", True, False)
    write_fault(faults, Fault(gpu=UUIDS[0], kind="wrong_result"))
    write_fault(faults, Fault(gpu=UUIDS[1], kind="slow"))
    assert probe.compute_device(UUIDS[0]) == dataclasses.replace(sound, is_wrong=True)
    slow = probe.compute_device(UUIDS[1])
    assert not slow.is_wrong
    assert all(slow.rates[name] < 0.85 * rate for name, rate in sound.rates.items())
    others = probe.compute_device(UUIDS[2])
    assert all(abs(others.rates[name] - rate) < 0.05 * rate for name, rate in sound.rates.items())
    assert check_of(probe).values == check_of(probe_of(None)).values


def test_a_lost_or_unknown_gpu_computes_nothing(faults: Path) -> None:
    probe = probe_of(faults)
    write_fault(faults, Fault(gpu=UUIDS[0], kind="lost"))
    with pytest.raises(ProbeError, match="lost"):
        probe.compute_device(UUIDS[0])
    with pytest.raises(ProbeError, match="no GPU of this host"):
        probe.compute_device(GpuUuid("GPU-nowhere"))


def test_a_fault_that_a_burn_in_reads_first_is_still_reported(faults: Path) -> None:
    probe = probe_of(faults)
    write_fault(faults, xid(95))
    probe.compute_device(UUIDS[1])
    assert [event.code for event in probe.events(0.0)] == [95]


def test_an_xid_without_its_code_is_refused(faults: Path) -> None:
    faults.write_text('{"faults": [{"gpu": "GPU-1", "kind": "xid"}]}')
    with pytest.raises(FaultFileError, match="an xid needs its code"):
        read_faults(faults)
