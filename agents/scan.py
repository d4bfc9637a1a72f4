"""``muster agent scan``: one look at the GPUs of this host, with the checks that the daemon uses.

What the server's detectors say of one look is said in their words; what only counts over time (rates, rises, decay) is
the server's. Volatile errors, heat and links that are down need no history, and are said here alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from agents.host.telling import HostTeller
from agents.probes.interface import GpuCheck, GpuIdentity, GpuInspection, HostInventory, Probe, ProbeEvent
from agents.telling.gpus import GpuTeller, state_of
from agents.telling.naming import Naming
from health.detectors import clock_events
from health.detectors.detector import Findings
from health.detectors.registry import check_once, judge_signal
from muster.domain.evidence import EventKind, GpuSignal, Severity, Source
from muster.domain.ids import NodeId
from muster.domain.metrics import METRICS, value_of
from muster.domain.policy import DEFAULT_POLICY
from muster.domain.state_readings import with_driver

_POLICY: Final = DEFAULT_POLICY.health
_THIS_HOST: Final = NodeId("this host")


@dataclass(frozen=True, slots=True)
class ScannedGpu:
    """``findings``: each fault in a sentence. ``identity`` is None where the GPU vanished between two calls.

    ``slow``: by the names of ``GPU_STATE``, empty where the GPU does not answer; ``inspection``: with its counters.
    """

    check: GpuCheck
    identity: GpuIdentity | None
    xids: tuple[int, ...]
    findings: tuple[str, ...]
    inspection: GpuInspection | None = None
    slow: Mapping[str, float] = field(default_factory=dict)

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
class ScannedHost:
    """``state`` by the names of ``HOST_STATE``; ``ports``: name → by those of ``PORT_STATE``."""

    state: Mapping[str, float] = field(default_factory=dict)
    ports: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScanReport:
    """``host`` is None where the GPUs are simulated: they have none beneath."""

    inventory: HostInventory
    gpus: tuple[ScannedGpu, ...]
    at_ms: int
    host: ScannedHost | None = None

    @property
    def is_healthy(self) -> bool:
        of_host = () if self.host is None else self.host.findings
        return not self.inventory.nameless and not of_host and not any(gpu.findings for gpu in self.gpus)


def scan(
    probe: Probe,
    *,
    now_ms: int,
    listen_s: float,
    logged: Callable[[HostInventory], Iterable[ProbeEvent]] = lambda _: (),
    host_of: Callable[[int], HostTeller] | None = None,
) -> ScanReport:
    """``listen_s``: how long XIDs are listened for; NVML does not tell those of the past, ``logged`` does.

    ``host_of``: who tells of the host, by how many GPUs were found; None: nobody.

    Raises ProbeError.
    """
    inventory = probe.identify()
    checks = probe.check(now_ms)
    heard = probe.events(listen_s)
    while_listening = {(event.gpu_uuid, event.code) for event in heard}
    events = (*heard, *(each for each in logged(inventory) if (each.gpu_uuid, each.code) not in while_listening))
    identities = {identity.uuid: identity for identity in inventory.gpus}
    teller = GpuTeller(Naming("scan"))
    teller.pcie.saw(checks)
    inspections = {found.gpu_uuid: found for found in probe.inspect(now_ms)}
    told = teller.tell(inspections.values(), now_ms, 0.0)
    gpus = tuple(
        replace(
            _scanned(check, identities.get(check.gpu_uuid), events, told, inventory.driver_version),
            inspection=(found := inspections.get(check.gpu_uuid)),
            slow={} if found is None else state_of(found, teller.pcie),
        )
        for check in checks
    )
    num_found = sum(1 for check in checks if not check.is_lost)
    of_host = tuple(event for event in events if event.gpu_uuid is None)
    beside = teller.differing()
    version = inventory.driver_version
    host = None if host_of is None else _scanned_host(host_of(num_found), now_ms, of_host, version, beside)
    return ScanReport(inventory, gpus, now_ms, host)


def _scanned_host(
    teller: HostTeller,
    now_ms: int,
    logged: Iterable[ProbeEvent],
    driver_version: str | None,
    differing: Mapping[str, float],
) -> ScannedHost:
    """``logged``: what was told of no GPU, such as errors of NVSwitches, or what network cards' drivers say.

    ``differing``: GPUs that are set up otherwise than most of their model.
    """
    heard = dict.fromkeys(f"{words} {_when(event)}" for event in logged for words in _said_by(event, driver_version))
    ports = teller.look_at_ports(now_ms, 0.0)
    events = (*ports, *teller.tell(now_ms, 0.0, differing))
    about = {EventKind.PORT_STATE: "port {}: ", EventKind.HOST_STATE: ""}
    return ScannedHost(
        state=next((event.values for event in events if event.kind is EventKind.HOST_STATE), {}),
        ports={port.text: port.values for port in ports},
        findings=(
            *(about.get(event.kind, "").format(event.text) + words for event in events for words in _said_by(event)),
            *heard,
        ),
    )


def _scanned(
    check: GpuCheck,
    identity: GpuIdentity | None,
    events: Iterable[ProbeEvent],
    told: Iterable[ProbeEvent],
    driver_version: str | None,
) -> ScannedGpu:
    own = [event for event in events if event.kind is EventKind.XID and event.gpu_uuid == check.gpu_uuid]
    codes = tuple(dict.fromkeys(event.code for event in own if event.code is not None))
    heard = dict.fromkeys(f"{words} {_when(event)}" for event in own for words in _said_by(event, driver_version))
    slow = [_signal_of(event) for event in told if event.gpu_uuid == check.gpu_uuid]
    found = _findings_of(check, identity, slow)
    return ScannedGpu(check, identity, codes, tuple(dict.fromkeys((*found, *heard))))


def _when(event: ProbeEvent) -> str:
    if event.source is not Source.KERNEL_LOG:
        return "while we listened"
    at = datetime.fromtimestamp(event.at_ms / 1000, UTC)
    return f"in the kernel log at {at:%Y-%m-%d %H:%M:%S} UTC"


def _said_by(event: ProbeEvent, driver_version: str | None = None) -> Iterator[str]:
    """Each fault in words. What a program can bring about by itself (XID 13, 31, 43, 45) is none."""
    return _words_of(judge_signal(_signal_of(event, driver_version), _POLICY))


def _words_of(findings: Findings) -> Iterator[str]:
    return (found.summary for found in findings if found.severity >= Severity.WARNING)


def _signal_of(event: ProbeEvent, driver_version: str | None = None) -> GpuSignal:
    return GpuSignal(
        signal_id=event.origin,
        kind=event.kind,
        source=event.source,
        at_ms=event.at_ms,
        node_id=_THIS_HOST,
        gpu_uuid=event.gpu_uuid,
        code=event.code,
        text=event.text,
        values=with_driver(event.kind, event.values, driver_version),
    )


def _findings_of(check: GpuCheck, identity: GpuIdentity | None, slow: Iterable[GpuSignal]) -> tuple[str, ...]:
    """By the rules that need no past, at the limits of its own model and maxima."""
    if check.is_lost or check.is_late:
        word = "lost" if check.is_lost else "late"
        return (f"{word}: {'; '.join(check.faults.values())}",)
    models = {} if identity is None or identity.model is None else {check.gpu_uuid: identity.model}
    standing = _words_of(check_once(_THIS_HOST, [check.sample()], slow, _POLICY, check.at_ms, models))
    alone = (_uncorrected_ecc(check), *_clocks_held_down(check), _too_hot(check), _links_down(check, identity))
    return (*standing, *(words for words in alone if words is not None))


def _uncorrected_ecc(check: GpuCheck) -> str | None:
    count = value_of(check.values, "ecc_uncorrected_volatile")
    if not count:
        return None
    return f"{count:.0f} uncorrected ECC error{'s' if count != 1 else ''} since the driver was loaded"


def _clocks_held_down(check: GpuCheck) -> Iterator[str]:
    """At this moment; whether it is often enough to count, the server knows."""
    bits = clock_events.harmful_in(value_of(check.values, "clock_event_reasons") or 0)
    return (f"clocks are held down by {rule.words}" for rule in clock_events.RULES if bits & rule.bit)


def _too_hot(check: GpuCheck) -> str | None:
    margin_c = value_of(check.values, "temperature_margin_c")
    return f"{-margin_c:.0f} degrees past its slowdown temperature" if margin_c is not None and margin_c < 0 else None


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
        "host": _host_document(report.host),
        "nameless": [asdict(nameless) for nameless in report.inventory.nameless],
    }


def _host_document(host: ScannedHost | None) -> dict[str, Any] | None:
    if host is None:
        return None
    ports = {name: dict(values) for name, values in host.ports.items()}
    return {"values": dict(host.state), "ports": ports, "findings": list(host.findings)}


def _slow_document(gpu: ScannedGpu) -> dict[str, Any] | None:
    if gpu.inspection is None:
        return None
    return {
        "values": dict(gpu.slow),
        "counters": {**gpu.inspection.counters, **gpu.inspection.beside},
        "links": {str(link): dict(counts) for link, counts in gpu.inspection.link_counters.items()},
        "unsupported": sorted(gpu.inspection.unsupported),
        "faults": dict(gpu.inspection.faults),
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
        "slow": _slow_document(gpu),
        "identity": identity,
    }
