"""A scan's verdict is the server's: the same detectors at the policy's limits, over two checks; what is pending decides
nothing.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.events.naming import Naming
from agents.host.events import HostPlaces, HostTeller
from agents.host_facts import wall_ms
from agents.probes.interface import GpuCheck, GpuInspection, HostInventory, ProbeError, ProbeEvent
from agents.probes.profiles import PROFILES
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from agents.scan.document import as_document
from agents.scan.scan import ScannedGpu, ScanReport, scan_without_driver
from agents.scan.scan import scan as look
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.gpu.metrics import INDEX
from muster.domain.policy.health import HealthPolicy
from tests.agents.host.trees import HostTree

(UUID,) = simulated_uuids(1)
XID_149 = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"


class Played(SimulatedProbe):
    """One GPU whose readings, counters and events the test lays over a healthy one, look by look."""

    def __init__(self, model: str = "h100") -> None:
        super().__init__(PROFILES[model], (UUID,), activity=lambda _: 0.0)
        self.readings: list[Mapping[str, float]] = [{}]
        self.states: list[Mapping[str, float]] = [{}]
        self.counters: list[Mapping[str, float]] = [{}]
        self.links: list[Mapping[str, float]] = [{}]
        self.alongside: Mapping[str, float] = {}
        self.reported: list[ProbeEvent] = []

    def check(self, now_ms: int) -> tuple[GpuCheck, ...]:
        (found,) = super().check(now_ms)
        values = list(found.values)
        for name, value in _next(self.readings).items():
            values[INDEX[name]] = value
        return (replace(found, values=tuple(values)),)

    def inspect(self, now_ms: int) -> tuple[GpuInspection, ...]:
        (found,) = super().inspect(now_ms)
        links = {0: {**found.link_counters.get(0, {}), **_next(self.links)}}
        return (
            replace(
                found,
                state={**found.state, **_next(self.states)},
                counters={**found.counters, **_next(self.counters)},
                link_counters={**found.link_counters, **links},
                alongside={**found.alongside, **self.alongside},
            ),
        )

    def events(self, timeout_s: float) -> tuple[ProbeEvent, ...]:
        told, self.reported = tuple(self.reported), []
        return told or super().events(timeout_s)


def _next(watched: list[Mapping[str, float]]) -> Mapping[str, float]:
    return watched.pop(0) if len(watched) > 1 else watched[0]


def logged(code: int, text: str = "", *, since_boot_s: float = 5000.0, ago_s: float = 30.0) -> ProbeEvent:
    return ProbeEvent(
        origin=f"kmsg:{code}:{since_boot_s}",
        kind=EventKind.XID,
        source=Source.KERNEL_LOG,
        at_ms=wall_ms() - int(ago_s * 1000),
        gpu_uuid=UUID,
        code=code,
        text=text,
        values={"since_boot_s": since_boot_s},
    )


def scanned(probe: SimulatedProbe, listen_s: float = 0.05, **options: Any) -> ScannedGpu:
    (gpu,) = look(probe, now_ms=wall_ms(), listen_s=listen_s, **options).gpus
    return gpu


def faults(gpu: ScannedGpu) -> dict[str, str]:
    return {each.fault_key: each.summary for each in gpu.findings if each.waits is None}


def waiting(gpu: ScannedGpu) -> set[str]:
    return {each.fault_key for each in gpu.findings if each.waits is not None}


def policy(**sections: Any) -> HealthPolicy:
    return HealthPolicy.model_validate(sections)


def test_a_healthy_host_that_has_just_booted_is_healthy() -> None:
    """Of 288 healthy hosts 214 reported this after a boot: links that train, a fabric that registers, their XIDs."""
    probe = Played()
    probe.states = [{"nvlink_links_down": 4, "fabric_state": 2}]
    report = look(
        probe,
        now_ms=(now_ms := wall_ms()),
        listen_s=0,
        logged=lambda _: [logged(149, XID_149, since_boot_s=20), logged(136, since_boot_s=21)],
    )
    (gpu,) = report.gpus
    assert report.is_healthy
    assert waiting(gpu) == {"nvlink_down", "fabric_state:not_ready", "xid:149", "xid:136"}
    assert gpu.state == "WAITS"
    until = {each.fault_key: each.waits.until_ms for each in gpu.findings if each.waits is not None}
    assert until["nvlink_down"] == now_ms + 300_000
    assert until["xid:149"] is None


def test_what_stands_from_one_check_to_the_other_for_as_long_as_it_must_is_a_fault() -> None:
    probe = Played()
    probe.states = [{"nvlink_links_down": 4}]
    gpu = scanned(probe, 0.4, policy=policy(warm_up={"outlast_s": 0.2}))
    assert faults(gpu) == {"nvlink_down": "4 of 18 NVLinks are down"}


def test_what_is_over_at_the_second_check_never_counts() -> None:
    probe = Played()
    probe.states = [{"nvlink_links_down": 4}, {"nvlink_links_down": 0}]
    gpu = scanned(probe, 0.1, policy=policy(warm_up={"outlast_s": 60}))
    assert gpu.findings == ()


@pytest.mark.parametrize(("margin_c", "num"), [(-1, 0), (-2, 0), (-2.5, 1)])
def test_the_margin_to_slowing_down_is_the_policys(margin_c: float, num: int) -> None:
    probe = Played()
    probe.readings = [{"temperature_margin_c": margin_c}]
    assert list(faults(scanned(probe))).count("thermal_margin") == num


def test_one_throttled_sample_is_no_fault_and_the_rule_is_stated_not_to_be_judged() -> None:
    probe = Played()
    probe.readings = [{"clock_event_reasons": 0x80}]
    report = look(probe, now_ms=wall_ms(), listen_s=0.05)
    assert report.is_healthy
    assert "6 of 10 samples, 2 were taken" in report.not_judged["clock_events"]


def test_throttling_in_as_many_samples_as_the_policy_states_is_a_fault() -> None:
    probe = Played()
    probe.readings = [{"clock_event_reasons": 0x40}]
    rule = policy(clock_events={"window_samples": 2, "harmful_samples": 2})
    report = look(probe, now_ms=wall_ms(), listen_s=0.05, policy=rule)
    assert set(faults(report.gpus[0])) == {"clock_events:hw_thermal"}
    assert "clock_events" not in report.not_judged


def test_a_long_scan_samples_as_often_as_an_agent_may() -> None:
    report = look(Played(), now_ms=wall_ms(), listen_s=2.2)
    assert "4 were taken" in report.not_judged["clock_events"]


def test_what_rises_between_the_checks_is_judged() -> None:
    probe = Played()
    probe.readings = [{"ecc_uncorrected_aggregate": 3}, {"ecc_uncorrected_aggregate": 5}]
    assert faults(scanned(probe)) == {"ecc_uncorrected": "2 uncorrected ECC errors"}
    assert faults(scanned(probe, listen_s=0)) == {}


def test_errors_since_the_driver_was_loaded_are_stated_to_be_so() -> None:
    probe = Played()
    probe.readings = [{"ecc_uncorrected_volatile": 1, "ecc_uncorrected_aggregate": 9}]
    assert faults(scanned(probe)) == {"ecc_uncorrected": "1 uncorrected ECC error since the driver was loaded"}


@pytest.mark.parametrize(("replays", "num"), [(31, 0), (32, 1)])
def test_a_rise_is_compared_with_the_limit_of_a_minute(replays: int, num: int) -> None:
    """Thirty-one replays a minute are allowed over 16 lanes of generation 5: not one a second, in a second."""
    probe = Played()
    probe.alongside = {"pcie_generation": 5, "pcie_width": 16}
    probe.readings = [{"pcie_generation": 5, "pcie_width": 16}]
    probe.counters = [{"pcie_replays": 100}, {"pcie_replays": 100 + replays}]
    report = look(probe, now_ms=wall_ms(), listen_s=0.05)
    assert list(faults(report.gpus[0])).count("pcie_replays") == num
    assert "--listen 60" in report.not_judged["pcie_replays"]


def test_a_links_errors_are_judged_link_by_link() -> None:
    probe = Played()
    probe.links = [{"crc_errors": 0}, {"crc_errors": 6000}]
    assert set(faults(scanned(probe))) == {"nvlink_crc:link0"}


def test_totals_of_a_boards_life_are_judged() -> None:
    probe = Played()
    probe.alongside = {"ecc_corrected_sram_total": 10_001}
    assert set(faults(scanned(probe))) == {"corrected_errors:sram"}


def test_events_do_not_end_the_listening() -> None:
    probe = Played()
    probe.reported = [replace(logged(31), source=Source.NVML, origin="a")]
    probe.readings = [{"ecc_uncorrected_aggregate": 0}, {"ecc_uncorrected_aggregate": 1}]
    gpu = scanned(probe, 0.2)
    assert gpu.xids == (31,)
    assert set(faults(gpu)) == {"ecc_uncorrected"}


def test_the_drivers_word_stands_over_the_catalogues() -> None:
    """The catalogue would reset for XID 119; NVML asks for a reboot, and 154 for a drain."""
    probe = Played()
    probe.readings = [{"recovery_action": 2}]
    words = "GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)"
    events = [logged(119, ago_s=2), logged(154, words, ago_s=1)]
    found = scanned(probe, logged=lambda _: events)
    asked = {each.fault_key: each.action for each in found.findings}
    assert asked["xid:119"] == asked["recovery_action:reboot_node"] == "reboot_node"
    by_log = {each.fault_key: each.action for each in scanned(Played(), logged=lambda _: events).findings}
    assert by_log["xid:119"] == by_log["xid:154:drain_p2p"] == "drain_p2p"
    alone = {each.fault_key: each.action for each in scanned(Played(), logged=lambda _: events[:1]).findings}
    assert alone == {"xid:119": "reset_gpu"}


def test_a_warning_of_last_week_has_decayed_and_what_condemns_has_not() -> None:
    week_s = 30 * 86_400
    gpu = scanned(Played(), logged=lambda _: [logged(63, ago_s=week_s), logged(95, ago_s=week_s)])
    assert set(faults(gpu)) == {"xid:95"}


def test_a_finding_is_an_object_for_programs() -> None:
    probe = Played()
    probe.readings = [{"remap_pending": 1}]
    document = as_document(look(probe, now_ms=(now_ms := wall_ms()), listen_s=0))
    (found,) = json.loads(json.dumps(document))["gpus"][0]["findings"]
    assert found.pop("at").endswith("Z")
    assert found == {
        "detector": "row_remap",
        "severity": "DEGRADED",
        "fault": "row_remap:pending",
        "gpu_uuid": UUID,
        "pci": None,
        "onset_ms": now_ms,
        "summary": "a row remap waits for a GPU reset",
        "sources": ["nvml"],
        "action": None,
        "waits": None,
    }


def without_driver(
    root: Path, events: Callable[[HostInventory], Iterable[ProbeEvent] | None] = lambda _: ()
) -> ScanReport:
    return scan_without_driver(
        ProbeError("there is no NVIDIA driver", "Install it."),
        now_ms=wall_ms(),
        listen_s=0,
        logged=events,
        host_of=lambda _: HostTeller(Naming("host"), HostPlaces(root=root, folders=(root,))),
    )


def test_without_a_driver_the_kernel_log_reports_of_each_gpu_by_its_address(tmp_path: Path) -> None:
    HostTree(tmp_path).pressure()
    gone = [
        replace(
            logged(79, f"of a GPU at 0000:{bus}:00 that the driver does not name: GPU has fallen off the bus."),
            gpu_uuid=None,
            origin=bus,
        )
        for bus in ("1b", "43")
    ]
    report = without_driver(tmp_path, lambda _: gone)
    assert report.host is not None
    assert {(each.fault_key, each.pci, each.action) for each in report.host.findings} == {
        ("xid:79", "0000:1b:00", "reboot_node"),
        ("xid:79", "0000:43:00", "reboot_node"),
        ("gpus_at_fault:2", None, None),
    }
    assert not report.is_healthy


def test_a_kernel_log_that_cannot_be_read_is_stated(tmp_path: Path) -> None:
    HostTree(tmp_path).pressure()
    assert {"xid", "sxid", "nic_driver"} <= without_driver(tmp_path, lambda _: None).not_judged.keys()
    assert "xid" not in without_driver(tmp_path).not_judged
