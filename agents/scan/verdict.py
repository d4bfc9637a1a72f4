"""The verdict on a scan, by the server's rules: the same detectors, the same policy, one fault one evidence.

The scan's data is replayed by ``health.replay.replay`` in the order of its times, and the evidence at the end is the
verdict: faults that weigh now, and faults that weigh only if they last, or never for a reason. Three assumptions are
made that a server does not need: volatile counters began at zero when the driver was loaded; no person has dismissed or
repaired anything since the boot; and the board was seen before, so that the totals of its life are no news.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from agents.kernel_log.kernel_log import unnamed_place
from agents.probes.interface import GpuCheck, ProbeEvent
from health.detectors.memory import ecc_uncorrected
from health.evidence.state import counts, is_condemning
from health.evidence.suppression import is_weightless, weighs_from_ms, why_weightless
from health.remedy.requested_remedy import word_of
from health.replay.replay import Replay
from health.replay.stream import Passed, Placed, Sampled
from health.xid.recovery import Action
from muster.domain.evidence.findings import EventKind, Evidence, GpuSample, GpuSignal, Severity, Source, Suppression
from muster.domain.evidence.repairs import RequestedBy
from muster.domain.evidence.state_readings import with_driver
from muster.domain.gpu.metrics import INDEX, NUM_METRICS
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing

THIS_HOST: Final = NodeId("this host")
NO_ANSWER: Final = "no_answer"
"""Name in the place of a detector for a GPU that did not answer in time, so that its state is unknown."""
_VOLATILE: Final = "ecc_uncorrected_volatile"
_AT: Final = "pci:"


@dataclass(frozen=True, slots=True)
class Waits:
    """The reason why a finding does not count.

    ``until_ms``: when it will if it still stands then; None: it never will.
    """

    why: str
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """One fault. ``pci``: of a GPU that the driver does not name, and that the kernel log reports.

    ``action``: the requested action (NVML's, then XID 154's, then the catalogue's), None where no source names one.
    ``waits`` None: it counts now.
    """

    detector: str
    severity: Severity
    fault_key: str
    gpu_uuid: GpuUuid | None
    pci: str | None
    onset_ms: int
    summary: str
    sources: tuple[Source, ...]
    action: Action | None
    waits: Waits | None

    @property
    def is_fault(self) -> bool:
        """Return whether it counts now and keeps new jobs away, or worse."""
        return self.waits is None and self.severity > Severity.WARNING

    @property
    def is_warning(self) -> bool:
        """Return whether it counts now and only lowers the score."""
        return self.waits is None and self.severity <= Severity.WARNING


@dataclass(frozen=True, slots=True)
class Seen:
    """All data of a scan. ``checks``: in the order in which they were made. ``models``: where they are known."""

    checks: tuple[GpuCheck, ...]
    events: tuple[ProbeEvent, ...]
    models: Mapping[GpuUuid, str]
    driver_version: str | None
    began_ms: int
    ended_ms: int


def verdict(seen: Seen, policy: HealthPolicy) -> tuple[ScanFinding, ...]:
    """Return faults first, then warnings, then findings that wait; each by its severity and time."""
    signals = tuple(signal_of(event, seen.driver_version) for event in seen.events)
    world = Replay(policy)
    for given in (*_inputs(seen, signals), Passed(seen.ended_ms)):
        for _ in world.take(given):
            pass  # `muster health replay` shows the steps; here the end counts
    known = world.evidence()
    found = [
        _finding(each, known, seen)
        for each in known
        if each.severity >= Severity.WARNING and _is_reported(each, seen.ended_ms)
    ]
    found += _without_answer(seen)
    return tuple(
        sorted(found, key=lambda each: (each.waits is not None, -each.severity, each.onset_ms, each.fault_key))
    )


def signal_of(event: ProbeEvent, driver_version: str | None = None) -> GpuSignal:
    place = unnamed_place(event.text) if event.gpu_uuid is None and event.kind is EventKind.XID else None
    return GpuSignal(
        signal_id=event.origin,
        kind=event.kind,
        source=event.source,
        at_ms=event.at_ms,
        node_id=THIS_HOST,
        gpu_uuid=event.gpu_uuid if place is None else GpuUuid(f"{_AT}{place}"),
        code=event.code,
        text=event.text,
        values=with_driver(event.kind, event.values, driver_version),
    )


def _inputs(seen: Seen, signals: Iterable[GpuSignal]) -> list[Placed | Sampled | GpuSignal]:
    """Return inputs with states before the readings of the same moment: a GPU's own maxima are known by then."""
    told: list[Sampled | GpuSignal] = [*signals, *(Sampled(THIS_HOST, check.sample()) for check in seen.checks)]
    given = sorted(told, key=lambda each: (each.at_ms, isinstance(each, Sampled)))
    first_ms = min((each.at_ms for each in given), default=seen.began_ms)
    uuids = dict.fromkeys(check.gpu_uuid for check in seen.checks)
    placed = [Placed(first_ms, uuid, THIS_HOST, Standing.HEALTHY, seen.models.get(uuid, "")) for uuid in uuids]
    loaded = [Sampled(THIS_HOST, _as_loaded(uuid, first_ms)) for uuid in uuids]
    return [*placed, *loaded, *given]


def _as_loaded(uuid: GpuUuid, at_ms: int) -> GpuSample:
    """Return a sample of the volatile counters at the driver's load, with nothing else."""
    values: list[float | None] = [None] * NUM_METRICS
    values[INDEX[_VOLATILE]] = 0.0
    return GpuSample(uuid, at_ms - 1, tuple(values))


def _is_reported(evidence: Evidence, now_ms: int) -> bool:
    """Return whether to report it.

    Evidence is left out if the kernel log's text replaced it, if it ended while pending, or if it decayed.
    """
    if evidence.suppressed_by:
        return Suppression.SUPERSEDED not in evidence.suppressed_by
    if is_weightless(evidence):
        return weighs_from_ms(evidence) is not None
    return is_condemning(evidence) or now_ms - evidence.last_seen_ms < evidence.counts_for_ms


def _finding(evidence: Evidence, known: Iterable[Evidence], seen: Seen) -> ScanFinding:
    uuid = evidence.gpu_uuid
    word = word_of(evidence, [each for each in known if each.gpu_uuid == uuid and counts(each)])
    waits = None
    if is_weightless(evidence):
        waits = Waits(why_weightless(evidence) or "", weighs_from_ms(evidence))
    since = " since the driver was loaded" if _is_of_the_load(evidence, seen) else ""
    is_named = uuid is None or not uuid.startswith(_AT)
    return ScanFinding(
        detector=evidence.detector,
        severity=evidence.severity,
        fault_key=evidence.fault_key,
        gpu_uuid=uuid if is_named else None,
        pci=None if uuid is None or is_named else uuid.removeprefix(_AT),
        onset_ms=evidence.onset_ms,
        summary=f"{evidence.summary}{since}",
        sources=evidence.sources,
        action=None if word is None or word[1] is RequestedBy.RULE else word[0],
        waits=waits,
    )


def _is_of_the_load(evidence: Evidence, seen: Seen) -> bool:
    """Return whether the first reading showed it, so that its time is unknown."""
    return evidence.detector == ecc_uncorrected.NAME and evidence.onset_ms == seen.began_ms


def _without_answer(seen: Seen) -> Iterator[ScanFinding]:
    newest = {check.gpu_uuid: check for check in seen.checks}
    for check in newest.values():
        if check.is_late:
            yield ScanFinding(
                detector=NO_ANSWER,
                severity=Severity.DEGRADED,
                fault_key=NO_ANSWER,
                gpu_uuid=check.gpu_uuid,
                pci=None,
                onset_ms=check.at_ms,
                summary=f"it cannot be judged: {'; '.join(check.faults.values())}",
                sources=(Source.AGENT,),
                action=None,
                waits=None,
            )
