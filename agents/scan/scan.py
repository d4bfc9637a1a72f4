"""Scan of a host, ``muster agent scan``: two checks with the daemon's probes, judged by the server's detectors.

Between the checks the scan listens for XIDs, and samples the GPUs as often as an agent may. A rise from one check to
the next is judged as in an agent's window of a minute: a shorter scan lists what it could not judge (``not_judged``).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from agents.events.gpus import GpuTeller, state_of
from agents.events.naming import Naming
from agents.host.events import NOTHING_DIFFERS, HostTeller
from agents.host_facts import sees_every_process
from agents.probes.interface import GpuCheck, GpuIdentity, GpuInspection, HostInventory, Probe, ProbeError, ProbeEvent
from agents.scan.limits import WINDOW_S, not_judged
from agents.scan.verdict import ScanFinding, Seen, verdict
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.evidence.state_readings import HOST_READING_TEXTS, words_in
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.health import HealthPolicy

SAMPLE_S: Final = 1.0
"""Shortest interval at which an agent may sample; a long scan samples as an agent does, each ten seconds."""
_SAMPLES: Final = 10
_SLOWEST_SAMPLE_S: Final = 10.0
_EARLY_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ScannedGpu:
    """One GPU. ``check``: the newest. ``identity`` is None where the GPU vanished between two calls.

    ``slow``: by the names of ``GPU_STATE``, empty where the GPU does not answer; ``inspection``: with its counters.
    """

    check: GpuCheck
    identity: GpuIdentity | None
    xids: tuple[int, ...]
    findings: tuple[ScanFinding, ...]
    inspection: GpuInspection | None = None
    slow: Mapping[str, float] = field(default_factory=dict)

    @property
    def state(self) -> str:
        if self.check.is_lost:
            return "LOST"
        if self.check.is_late:
            return "LATE"
        if self.findings:
            if any(found.is_fault for found in self.findings):
                return "FAULT"
            return "WARN" if any(found.is_warning for found in self.findings) else "WAITS"
        return "MIG" if self.identity is not None and self.identity.is_mig_enabled else "OK"


@dataclass(frozen=True, slots=True)
class ScannedHost:
    """The host.

    ``state`` by the names of ``HOST_STATE``, ``words`` of ``HOST_READING_TEXTS``, ``ports``: each by ``PORT_STATE``.

    ``findings``: about no GPU, or about a GPU that the driver does not name.
    """

    state: Mapping[str, float] = field(default_factory=dict)
    ports: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[ScanFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class ScanReport:
    """Result of a scan. ``host`` is None where the GPUs are simulated: there is no real host beneath them.

    ``not_judged``: detector → why. ``no_driver``: why no driver answers; then the GPUs are known from the kernel log
    alone.
    """

    inventory: HostInventory
    gpus: tuple[ScannedGpu, ...]
    at_ms: int
    listened_s: float
    host: ScannedHost | None = None
    not_judged: Mapping[str, str] = field(default_factory=dict)
    no_driver: ProbeError | None = None

    @property
    def is_healthy(self) -> bool:
        """All of the host could be checked, and nothing is at fault."""
        return bool(self.gpus) and not self.inventory.nameless and not any(each.is_fault for each in self.findings)

    @property
    def has_warnings(self) -> bool:
        """Return whether a finding counts that is no fault: it lowers the score, and takes no GPU out."""
        return any(each.is_warning for each in self.findings)

    @property
    def findings(self) -> tuple[ScanFinding, ...]:
        of_host = () if self.host is None else self.host.findings
        return (*(found for gpu in self.gpus for found in gpu.findings), *of_host)


class _Moment(NamedTuple):
    """A time. ``at_ms`` since 1970.

    ``report_s``: the time for the reporters; the second check is at least a minute after the first.
    """

    at_ms: int
    now_s: float
    report_s: float


@dataclass(slots=True)
class _Results:
    """Results so far."""

    checks: list[GpuCheck] = field(default_factory=list)
    events: list[ProbeEvent] = field(default_factory=list)
    inspections: dict[GpuUuid, GpuInspection] = field(default_factory=dict)
    num_samples: int = 0


def scan(
    probe: Probe,
    *,
    now_ms: int,
    listen_s: float,
    logged: Callable[[HostInventory], Iterable[ProbeEvent] | None] = lambda _: (),
    host_of: Callable[[int | None], HostTeller] | None = None,
    policy: HealthPolicy = DEFAULT_POLICY.health,
) -> ScanReport:
    """Scan the host. ``listen_s``: the time between the two checks; 0: one check. Raises ProbeError.

    NVML does not report XIDs of the past, ``logged`` does; it returns None where the log cannot be read. ``host_of``
    returns the reporter of the host for the number of GPUs found, None where that is unknown; None: the host is not
    reported.
    """
    inventory = probe.identify()
    results, gpus = _Results(), GpuTeller(Naming("scan"), sees_programs=sees_every_process())
    began_s = time.monotonic()
    first = _Moment(now_ms, began_s, 0.0)
    _check(probe, gpus, results, first)
    num_found = sum(1 for check in results.checks if not check.is_lost)
    host = None if host_of is None else host_of(num_found)
    results.events += _reported_by(host, first, gpus.differing())
    results.events += _totals(results.inspections.values(), now_ms)
    if listen_s > 0:
        last = _listen(probe, gpus, results, first, listen_s)
        _check(probe, gpus, results, last)
        results.events += _reported_by(host, last, gpus.differing())
    else:
        last = first
    results.events += probe.events(0)
    return _report(inventory, results, gpus, logged(inventory), host, first, last, policy)


def scan_without_driver(
    fault: ProbeError,
    *,
    now_ms: int,
    listen_s: float,
    logged: Callable[[HostInventory], Iterable[ProbeEvent] | None],
    host_of: Callable[[int | None], HostTeller],
    policy: HealthPolicy = DEFAULT_POLICY.health,
) -> ScanReport:
    """Return the report of a host without an answering driver: its kernel log, ports, disks, pressure."""
    nothing, results = HostInventory(), _Results()
    began_s = time.monotonic()
    first = last = _Moment(now_ms, began_s, 0.0)
    host = host_of(None)
    results.events += _reported_by(host, first)
    if listen_s > 0:
        time.sleep(listen_s)
        last = _after(first)
        results.events += _reported_by(host, last)
    found = _report(nothing, results, GpuTeller(Naming("scan")), logged(nothing), host, first, last, policy)
    return replace(found, no_driver=fault)


def _check(probe: Probe, gpus: GpuTeller, results: _Results, moment: _Moment) -> None:
    _sample(probe, gpus, results, moment.at_ms)
    inspections = probe.inspect(moment.at_ms)
    results.inspections |= {found.gpu_uuid: found for found in inspections}
    results.events += gpus.report(inspections, moment.at_ms, moment.report_s)


def _sample(probe: Probe, gpus: GpuTeller, results: _Results, at_ms: int) -> None:
    checks = probe.check(at_ms)
    gpus.saw(checks)
    results.checks += checks
    results.num_samples += 1


def _listen(probe: Probe, gpus: GpuTeller, results: _Results, first: _Moment, listen_s: float) -> _Moment:
    """Listen until the last check is due. A probe that cannot wait for events is not asked in a spin."""
    every_s = min(_SLOWEST_SAMPLE_S, max(SAMPLE_S, listen_s / _SAMPLES))
    until_s, next_s = first.now_s + listen_s, first.now_s + every_s
    while (now_s := time.monotonic()) < until_s:
        if now_s >= next_s:
            _sample(probe, gpus, results, _after(first).at_ms)
            next_s += every_s
        wait_s = max(0.0, min(next_s, until_s) - time.monotonic())
        heard = probe.events(wait_s)
        results.events += heard
        if not heard and time.monotonic() - now_s < wait_s / 2:
            time.sleep(min(_EARLY_PAUSE_S, wait_s))
    return _after(first)


def _after(first: _Moment) -> _Moment:
    now_s = time.monotonic()
    passed_s = now_s - first.now_s
    return _Moment(first.at_ms + int(passed_s * 1000), now_s, max(WINDOW_S, passed_s))


def _reported_by(
    host: HostTeller | None, moment: _Moment, differing: Mapping[str, float] = NOTHING_DIFFERS
) -> tuple[ProbeEvent, ...]:
    """Return the host's events. ``differing``: how many GPUs differ from most of their model."""
    if host is None:
        return ()
    return (*host.check_ports(moment.at_ms, moment.now_s), *host.report(moment.at_ms, moment.report_s, differing))


def _totals(inspections: Iterable[GpuInspection], at_ms: int) -> Iterator[ProbeEvent]:
    """Yield the totals of a board's life: an agent reports them as they rise, a scan whenever there are any."""
    naming = Naming("totals")
    for found in inspections:
        totals = {name: total for name, total in found.alongside.items() if name.endswith("_total") and total > 0}
        if totals:
            values = {"window_s": WINDOW_S, **totals}
            yield naming.event(EventKind.GPU_RATES, Source.NVML, at_ms, values, gpu_uuid=found.gpu_uuid)


def _report(
    inventory: HostInventory,
    results: _Results,
    gpus: GpuTeller,
    logged: Iterable[ProbeEvent] | None,
    host: HostTeller | None,
    first: _Moment,
    last: _Moment,
    policy: HealthPolicy,
) -> ScanReport:
    events = (*results.events, *(logged or ()))
    identities = {identity.uuid: identity for identity in inventory.gpus}
    models = {uuid: each.model for uuid, each in identities.items() if each.model is not None}
    seen = Seen(tuple(results.checks), events, models, inventory.driver_version, first.at_ms, last.at_ms)
    found = verdict(seen, policy)
    newest = {check.gpu_uuid: check for check in results.checks}
    states = {uuid: state_of(each, gpus.pcie) for uuid, each in results.inspections.items()}
    scanned = tuple(
        ScannedGpu(
            check=check,
            identity=identities.get(uuid),
            xids=_codes_of(uuid, events),
            findings=tuple(each for each in found if each.gpu_uuid == uuid),
            inspection=results.inspections.get(uuid),
            slow=states.get(uuid, {}),
        )
        for uuid, check in newest.items()
    )
    of_host = None if host is None else _scanned_host(events, tuple(each for each in found if each.gpu_uuid is None))
    listened_s = round(last.now_s - first.now_s, 3)
    left_out = not_judged(policy, results.num_samples, listened_s, states.values(), is_log_read=logged is not None)
    return ScanReport(inventory, scanned, first.at_ms, listened_s, of_host, left_out)


def _codes_of(uuid: GpuUuid, events: Iterable[ProbeEvent]) -> tuple[int, ...]:
    own = (each.code for each in events if each.kind is EventKind.XID and each.gpu_uuid == uuid)
    return tuple(dict.fromkeys(code for code in own if code is not None))


def _scanned_host(events: Iterable[ProbeEvent], findings: tuple[ScanFinding, ...]) -> ScannedHost:
    state: dict[str, float] = {}
    ports: dict[str, Mapping[str, float]] = {}
    words: dict[str, str] = {}
    for event in events:
        if event.kind is EventKind.HOST_STATE:
            state |= event.values
            words |= words_in(event.text, HOST_READING_TEXTS)
        elif event.kind is EventKind.PORT_STATE:
            ports[event.text] = event.values
    return ScannedHost(state, ports, words, findings)
