"""``muster agent scan``: one look at the GPUs of this host, with the checks that the daemon uses.

Only what needs no history is judged here; rates, flapping and decay are the server's.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from agents.probes.interface import GpuCheck, GpuIdentity, HostInventory, Probe, ProbeEvent
from muster.domain.evidence import EventKind
from muster.domain.ids import GpuUuid
from muster.domain.metrics import METRICS, value_of

HARMFUL_CLOCK_EVENTS: Final = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake: look at the rack's power",
}
"""NVML's clock event bits that a healthy GPU does not show (gpu-health §2.6)."""
RECOVERY_ACTIONS: Final = {
    1: "GPU reset",
    2: "node reboot",
    3: "drain peer-to-peer",
    4: "drain and reset",
    5: "IMEX domain recovery",
    6: "bus reset",
    7: "system reboot",
}
"""NVML_GPU_RECOVERY_ACTION_*."""


@dataclass(frozen=True, slots=True)
class ScannedGpu:
    """``findings``: each fault in a sentence. ``identity`` is None where the GPU vanished between two calls."""

    check: GpuCheck
    identity: GpuIdentity | None
    xids: tuple[int, ...]
    findings: tuple[str, ...]

    @property
    def state(self) -> str:
        if self.check.is_lost:
            return "LOST"
        if self.check.is_late:
            return "LATE"
        if self.findings:
            return "FAULT"
        return "MIG" if self.identity is not None and self.identity.is_mig_enabled else "OK"


@dataclass(frozen=True, slots=True)
class ScanReport:
    inventory: HostInventory
    gpus: tuple[ScannedGpu, ...]
    at_ms: int

    @property
    def is_healthy(self) -> bool:
        return not self.inventory.nameless and not any(gpu.findings for gpu in self.gpus)


def scan(probe: Probe, *, now_ms: int, listen_s: float) -> ScanReport:
    """``listen_s``: how long XIDs are listened for; NVML does not tell those of the past. Raises ProbeError."""
    inventory = probe.identify()
    checks = probe.check(now_ms)
    events = probe.events(listen_s)
    identities = {identity.uuid: identity for identity in inventory.gpus}
    gpus = tuple(_scanned(check, identities.get(check.gpu_uuid), events) for check in checks)
    return ScanReport(inventory, gpus, now_ms)


def _scanned(check: GpuCheck, identity: GpuIdentity | None, events: Iterable[ProbeEvent]) -> ScannedGpu:
    xids = _xids_of(check.gpu_uuid, events)
    findings = (*_findings_of(check, identity), *(f"XID {code} while we listened" for code in xids))
    return ScannedGpu(check, identity, xids, findings)


def _xids_of(uuid: GpuUuid, events: Iterable[ProbeEvent]) -> tuple[int, ...]:
    """Each code once, however many sources told it."""
    codes = (event.code for event in events if event.kind is EventKind.XID and event.gpu_uuid == uuid)
    return tuple(dict.fromkeys(code for code in codes if code is not None))


def _findings_of(check: GpuCheck, identity: GpuIdentity | None) -> tuple[str, ...]:
    if check.is_lost or check.is_late:
        word = "lost" if check.is_lost else "late"
        return (f"{word}: {'; '.join(check.faults.values())}",)
    found = [rule(check) for rule in _RULES]
    found.append(_links_down(check, identity))
    return tuple(words for words in found if words is not None)


def _uncorrected_ecc(check: GpuCheck) -> str | None:
    count = value_of(check.values, "ecc_uncorrected_volatile")
    if not count:
        return None
    return f"{count:.0f} uncorrected ECC error{'s' if count != 1 else ''} since the driver was loaded"


def _remap_pending(check: GpuCheck) -> str | None:
    return "a row remap waits for a GPU reset" if value_of(check.values, "remap_pending") else None


def _remap_failure(check: GpuCheck) -> str | None:
    return "a row remap failed: the board is to be replaced" if value_of(check.values, "remap_failure") else None


def _recovery_action(check: GpuCheck) -> str | None:
    action = value_of(check.values, "recovery_action")
    if not action:
        return None
    return f"the driver asks for: {RECOVERY_ACTIONS.get(int(action), f'unknown action {action:.0f}')}"


def _clock_events(check: GpuCheck) -> str | None:
    bits = int(value_of(check.values, "clock_event_reasons") or 0)
    words = [reason for bit, reason in HARMFUL_CLOCK_EVENTS.items() if bits & bit]
    return f"clocks are held down: {', '.join(words)}" if words else None


def _too_hot(check: GpuCheck) -> str | None:
    margin_c = value_of(check.values, "temperature_margin_c")
    return f"{-margin_c:.0f} degrees past its slowdown temperature" if margin_c is not None and margin_c < 0 else None


_RULES: Final[tuple[Callable[[GpuCheck], str | None], ...]] = (
    _uncorrected_ecc,
    _remap_pending,
    _remap_failure,
    _recovery_action,
    _clock_events,
    _too_hot,
)
"""Thresholds where one look is enough: any is a fault (gpu-health §2.5–2.7)."""


def _links_down(check: GpuCheck, identity: GpuIdentity | None) -> str | None:
    active = value_of(check.values, "nvlink_active_links")
    expected = identity.num_nvlinks if identity is not None else None
    if active is None or expected is None or active >= expected:
        return None
    return f"{expected - active:.0f} of {expected} NVLinks are down"


def as_document(report: ScanReport) -> dict[str, Any]:
    """The report for programs: metrics by name, null where unsupported or failed."""
    return {
        "is_healthy": report.is_healthy,
        "is_simulated": report.inventory.is_simulated,
        "at_ms": report.at_ms,
        "driver_version": report.inventory.driver_version,
        "cuda_version": report.inventory.cuda_version,
        "gpus": [_gpu_document(gpu) for gpu in report.gpus],
        "nameless": [asdict(nameless) for nameless in report.inventory.nameless],
    }


def _gpu_document(gpu: ScannedGpu) -> dict[str, Any]:
    identity = asdict(gpu.identity) if gpu.identity is not None else None
    if identity is not None:
        identity["unsupported"] = sorted(identity["unsupported"])
    return {
        "uuid": gpu.check.gpu_uuid,
        "index": gpu.check.index,
        "state": gpu.state,
        "findings": gpu.findings,
        "xids": gpu.xids,
        "values": {metric.name: value_of(gpu.check.values, metric.name) for metric in METRICS},
        "unsupported": sorted(gpu.check.unsupported),
        "faults": dict(gpu.check.faults),
        "identity": identity,
    }
