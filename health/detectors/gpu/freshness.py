"""Signals that stay away: a GPU for which the driver gives no answer, and readers that give no sign of life.

No data is not health. A report of an agent states the age of each group of signals, and the driver's late answers:

    sample   GPU A     GPU B     finding about A
    0 s      answer    answer    none
    10 s     late      answer    a warning
    30 s     late      answer    DEGRADED: no new work
    610 s    late      answer    CONDEMNING, as B answers: the driver works, and A does not

A is never condemned while no other GPU of its host answers: then the driver or the host may be at fault. If it answers
for none, one finding about the node keeps all its new work away, until any GPU is answered for. A report
without ages (of an older agent, or while the driver is released for a repair) ends what was found by ages, and a host
without reports is judged by its contact.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from health.detectors.detector import About, Closing, counts_for_ms
from health.detectors.modes import in_mode
from muster.domain.evidence.findings import Finding, Severity, Source, Trust
from muster.domain.gpu.signal_groups import GROUP_TEXTS, SignalGroup
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy

NAME: Final = "freshness"
LATENCY: Final = "driver_latency"
VERSION: Final = 1
LATE: Final = "freshness:readings:late"
NO_READINGS: Final = "freshness:readings:missing"
UNRESPONSIVE: Final = "freshness:readings:unresponsive"
READINGS_FAULTS: Final = (LATE, NO_READINGS, UNRESPONSIVE)
"""Three degrees of one fault. All end with the next answer."""
NO_GPU_READ: Final = "freshness:readings"
"""About the node: the driver answers for none of its GPUs. It stands for ``NO_READINGS`` of each."""
AGENT: Final = "freshness:agent"
ABOUT: Final = About("signals of a GPU or node stay away", "our own numbers", Severity.CONDEMNING)
LATENCY_ABOUT: Final = About("the driver answers slowly", "our own numbers", Severity.WARNING)
_SOURCES: Final[Mapping[SignalGroup, Source]] = {
    SignalGroup.KERNEL_LOG: Source.KERNEL_LOG,
    SignalGroup.DCGM: Source.DCGM,
    SignalGroup.HOST: Source.HOST,
    SignalGroup.AGENT: Source.AGENT,
}


class Answer(StrEnum):
    """The driver's answer for one GPU in one sample."""

    GIVEN = "given"
    LATE = "late"
    """None in time, an error, or the GPU is not in the sample."""
    LOST = "lost"
    """The driver reports the GPU lost, which is a fault of its own."""
    UNREADABLE = "unreadable"
    """The agent sent readings that are no numbers: they are missing, and the driver is not at fault."""


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """One GPU in one report. ``states_age_ms``: None where its states are not declared."""

    answer: Answer
    states_age_ms: int | None = None
    latency_ms: float | None = None


@dataclass(frozen=True, slots=True)
class AgedReport:
    """A report of current state with its ages.

    ``ages_ms``: of the groups of the whole host. ``own``: GPUs that are enrolled on the node, reported or not.
    """

    node_id: NodeId
    at_ms: int
    ages_ms: Mapping[SignalGroup, int]
    gpus: Mapping[GpuUuid, GpuAnswer]
    own: Collection[GpuUuid]


@dataclass(frozen=True, slots=True)
class GpuFreshness:
    """Facts about one GPU: when its groups were last delivered, and what has stayed away since.

    ``num_late``: samples in a row without an answer, the first at ``late_since_ms``. ``num_slow``: slow ones in a row.
    """

    answered_ms: int | None = None
    states_ms: int | None = None
    latency_ms: float | None = None
    late_since_ms: int | None = None
    num_late: int = 0
    num_slow: int = 0


@dataclass(frozen=True, slots=True)
class Freshness:
    """Facts about one host: its GPUs, its own groups by when they were last delivered, and the faults that stand.

    ``stated_ms``: ``GPU/fault key`` (``/fault key`` for the node) → when it was last stated.
    """

    gpus: Mapping[GpuUuid, GpuFreshness] = field(default_factory=dict)
    groups_ms: Mapping[str, int] = field(default_factory=dict)
    stated_ms: Mapping[str, int] = field(default_factory=dict)


NOTHING_KNOWN: Final = Freshness()


def judge(
    before: Freshness, report: AgedReport, policy: HealthPolicy, now_ms: int
) -> tuple[Freshness, tuple[Finding | Closing, ...]]:
    """Return the facts after a report, and the findings and ends of faults that it shows.

    A fault is stated when it begins and each ``restate_s``. It ends when its group is delivered again.
    """
    gpus = {
        uuid: after for uuid in sorted(report.own) if (after := _after(before.gpus.get(uuid), uuid, report, policy))
    }
    groups_ms = {group.value: report.at_ms - age_ms for group, age_ms in report.ages_ms.items()}
    onset_ms = min(report.at_ms, now_ms)
    standing = {
        _place_key(found): found
        for found in in_mode(tuple(_standing(gpus, report, _Scene(report.node_id, policy, onset_ms))), policy)
    }
    stated_ms, news = dict[str, int](), list[Finding | Closing]()
    for key, found in standing.items():
        last_ms = before.stated_ms.get(key)
        is_due = last_ms is None or onset_ms - last_ms >= policy.evidence.restate_s * 1000
        stated_ms[key] = onset_ms if is_due or last_ms is None else last_ms
        if is_due:
            news.append(found)
    for key, last_ms in before.stated_ms.items():
        if key in standing:
            continue
        if _still_lacks(key, gpus) and policy.detectors.freshness.mode != "off":
            stated_ms[key] = last_ms
        else:
            news.append(_closing(key, report.node_id, onset_ms))
    return Freshness(gpus, groups_ms, stated_ms), tuple(news)


def forget(before: Freshness, node_id: NodeId, at_ms: int) -> tuple[Closing, ...]:
    """Return the ends of all faults by ages, for a report without ages."""
    return tuple(_closing(key, node_id, at_ms) for key in before.stated_ms)


def agent_silence(node_id: NodeId, silent_ms: int, policy: HealthPolicy, now_ms: int) -> tuple[Finding, ...]:
    """Return the finding about a node whose agent has sent nothing for ``silent_ms``; none where that is no fault."""
    if silent_ms < policy.detectors.freshness.agent_max_s * 1000:
        return ()
    return in_mode((_Scene(node_id, policy, now_ms).overdue(SignalGroup.AGENT, silent_ms),), policy)


def agent_reports(node_id: NodeId, at_ms: int) -> Closing:
    """Return the end of an agent's silence."""
    return Closing(AGENT, node_id, None, at_ms)


def _after(before: GpuFreshness | None, uuid: GpuUuid, report: AgedReport, policy: HealthPolicy) -> GpuFreshness | None:
    """Return the GPU's facts; None where it has never delivered anything and is not in the report."""
    reported = report.gpus.get(uuid)
    if reported is None and before is None:
        return None
    known = before or GpuFreshness()
    reported = reported or GpuAnswer(Answer.LATE)
    states_ms = known.states_ms if reported.states_age_ms is None else report.at_ms - reported.states_age_ms
    now = replace(known, states_ms=states_ms, latency_ms=reported.latency_ms)
    if reported.answer is Answer.LOST:
        return replace(now, late_since_ms=None, num_late=0, num_slow=0)
    if reported.answer is not Answer.GIVEN:
        since_ms = report.at_ms if known.late_since_ms is None else known.late_since_ms
        return replace(now, late_since_ms=since_ms, num_late=known.num_late + 1, num_slow=0)
    is_slow = reported.latency_ms is not None and reported.latency_ms > policy.detectors.driver_latency.max_ms
    num_slow = known.num_slow + 1 if is_slow else 0
    return replace(now, answered_ms=report.at_ms, late_since_ms=None, num_late=0, num_slow=num_slow)


@dataclass(frozen=True, slots=True)
class _Scene:
    """Where and when a finding is made, and by which policy."""

    node_id: NodeId
    policy: HealthPolicy
    at_ms: int

    def finding(
        self,
        fault: str,
        severity: Severity,
        summary: str,
        values: Mapping[str, float],
        *,
        gpu_uuid: GpuUuid | None = None,
        source: Source = Source.NVML,
    ) -> Finding:
        detector = fault.partition(":")[0]
        return Finding(
            detector=detector,
            version=VERSION,
            fault_key=fault,
            gpu_uuid=gpu_uuid,
            node_id=self.node_id,
            severity=severity,
            trust=Trust.MEASURED,
            source=source,
            onset_ms=self.at_ms,
            counts_for_ms=counts_for_ms(severity, self.policy, detector),
            summary=summary,
            values=values,
        )

    def overdue(self, group: SignalGroup, age_ms: int, gpu_uuid: GpuUuid | None = None) -> Finding:
        words = f"{GROUP_TEXTS[group]}: nothing for {age_ms / 1000:.0f} s"
        source, values = _SOURCES.get(group, Source.NVML), {"age_s": age_ms / 1000}
        fault = f"{NAME}:{group.value}"
        return self.finding(fault, Severity.DEGRADED, words, values, gpu_uuid=gpu_uuid, source=source)


def _standing(gpus: Mapping[GpuUuid, GpuFreshness], report: AgedReport, scene: _Scene) -> Iterator[Finding]:
    limits = scene.policy.detectors.freshness
    is_any_given = any(each.answer is Answer.GIVEN for each in report.gpus.values())
    is_none_read = _is_none_read(gpus, report, limits.late_samples_max)
    if is_none_read:
        yield _none_read(gpus, scene)
    for uuid, known in gpus.items():
        reported = report.gpus.get(uuid, GpuAnswer(Answer.LATE))
        is_alone = reported.answer is Answer.LATE and is_any_given
        yield from _about_readings(uuid, known, scene, is_alone=is_alone, is_none_read=is_none_read)
        if reported.states_age_ms is not None and reported.states_age_ms > limits.states_max_s * 1000:
            yield scene.overdue(SignalGroup.STATES, reported.states_age_ms, uuid)
        if known.num_slow >= scene.policy.detectors.driver_latency.samples:
            yield _slow(uuid, known, scene)
    for group, age_ms in report.ages_ms.items():
        if age_ms > limits.max_age_s(group) * 1000:
            yield scene.overdue(group, age_ms)


def _is_none_read(gpus: Mapping[GpuUuid, GpuFreshness], report: AgedReport, late_samples_max: int) -> bool:
    """Return whether the driver has given no answer for any GPU of the host in as many samples."""
    answers = {uuid: report.gpus.get(uuid, GpuAnswer(Answer.LATE)).answer for uuid in gpus}
    late = [known.num_late >= late_samples_max and answers[uuid] is Answer.LATE for uuid, known in gpus.items()]
    return bool(gpus) and all(late)


def _none_read(gpus: Mapping[GpuUuid, GpuFreshness], scene: _Scene) -> Finding:
    num_late = min(each.num_late for each in gpus.values())
    words = f"the driver gave no answer for any GPU of this host in {num_late} samples in a row"
    return scene.finding(NO_GPU_READ, Severity.DEGRADED, words, {"late_samples": float(num_late)})


def _about_readings(
    uuid: GpuUuid, known: GpuFreshness, scene: _Scene, *, is_alone: bool, is_none_read: bool
) -> Iterator[Finding]:
    """Yield each degree that the GPU's silence has reached, of which a node's own finding stands for the second.

    ``is_alone``: others of its host answer. ``is_none_read``: none does, which is a finding about the node.
    """
    if known.late_since_ms is None:
        return
    limits = scene.policy.detectors.freshness
    silent_s = max(0.0, (scene.at_ms - known.late_since_ms) / 1000)
    values = {"late_samples": float(known.num_late), "silent_s": silent_s}
    words = "the driver gave no answer for this GPU in a sample"
    yield scene.finding(LATE, Severity.WARNING, words, values, gpu_uuid=uuid)
    if known.num_late < limits.late_samples_max or is_none_read:
        return
    words = f"the driver gave no answer for this GPU in {known.num_late} samples in a row"
    yield scene.finding(NO_READINGS, Severity.DEGRADED, words, values, gpu_uuid=uuid)
    if is_alone and silent_s >= limits.condemned_after_s:
        words = f"the driver has given no answer for this GPU for {silent_s:.0f} s, and does for others of its host"
        yield scene.finding(UNRESPONSIVE, Severity.CONDEMNING, words, values, gpu_uuid=uuid)


def _slow(uuid: GpuUuid, known: GpuFreshness, scene: _Scene) -> Finding:
    latency_ms = known.latency_ms or 0.0
    words = f"the driver took {latency_ms:.0f} ms to answer for this GPU, and as long in the samples before"
    return scene.finding(LATENCY, Severity.WARNING, words, {"latency_ms": latency_ms}, gpu_uuid=uuid)


def _still_lacks(key: str, gpus: Mapping[GpuUuid, GpuFreshness]) -> bool:
    """Return whether a stated degree lasts though it is not stated now: no sibling answers, or a limit has grown."""
    uuid, _, fault = key.partition("/")
    known = gpus.get(GpuUuid(uuid))
    return fault in READINGS_FAULTS and known is not None and known.late_since_ms is not None


def _place_key(found: Finding) -> str:
    return f"{found.gpu_uuid or ''}/{found.fault_key}"


def _closing(key: str, node_id: NodeId, at_ms: int) -> Closing:
    uuid, _, fault = key.partition("/")
    return Closing(fault, node_id, GpuUuid(uuid) if uuid else None, at_ms)
