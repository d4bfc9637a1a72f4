"""All detectors, and the two entry points: ``judge_sample`` for readings, ``judge_signal`` for events."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from health.detectors import clock_events, ecc_uncorrected, gpu_count, gpu_lost, recovery_action, row_remap, xid
from health.detectors.detector import NO_FINDINGS, Closing, Findings, Reading, SampleDetector, SignalDetector
from muster.domain.evidence import EventKind, Finding, GpuSample, GpuSignal
from muster.domain.health_policy import HealthPolicy
from muster.domain.ids import NodeId
from muster.domain.metrics import INDEX, METRICS

RISE_DETECTORS: Final[tuple[SampleDetector, ...]] = (ecc_uncorrected.DETECTOR, row_remap.RISE_DETECTOR)
STANDING_DETECTORS: Final[tuple[SampleDetector, ...]] = (row_remap.DETECTOR, recovery_action.DETECTOR)
SIGNAL_DETECTORS: Final[tuple[SignalDetector, ...]] = (xid.DETECTOR, gpu_lost.SIGNAL_DETECTOR, gpu_count.DETECTOR)

DETECTORS: Final[Mapping[str, int]] = {
    **{each.name: each.version for each in (*RISE_DETECTORS, *STANDING_DETECTORS)},
    **{each.name: each.version for each in SIGNAL_DETECTORS},
    clock_events.NAME: clock_events.VERSION,
}
"""Name → version of every rule."""

_COUNTERS: Final = tuple(INDEX[metric.name] for metric in METRICS if metric.kind == "counter")
WATCHED: Final[tuple[int, int, int]] = (ecc_uncorrected.VOLATILE, ecc_uncorrected.AGGREGATE, row_remap.UNCORRECTED)
"""Where in a sample the counters stand whose rise is a finding: all that judgement asks of the sample before."""
_READING_OF: Final[Mapping[str, int]] = {
    row_remap.PENDING: row_remap.PENDING_READING,
    row_remap.FAILURE: row_remap.FAILURE_READING,
    row_remap.EXHAUSTED: row_remap.UNCORRECTED,
    recovery_action.NAME: INDEX["recovery_action"],
    clock_events.NAME: INDEX["clock_event_reasons"],
}
"""Fault key, or its detector → the reading without which nobody can tell whether the fault still stands."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What judgement remembers of one GPU between samples. Keep it per GPU; start with ``GpuMemory(node_id)``.

    After a restart begin from the latest stored sample: ``GpuMemory(node_id, previous=sample)``; faults that stand are
    then stated once more, and join the evidence that is there. ``latest_ms``: the newest sample judged.
    ``stated_ms``: fault key → when a standing fault was last stated.
    """

    node_id: NodeId
    previous: GpuSample | None = None
    clock_windows: clock_events.Windows = clock_events.NO_WINDOWS
    stated_ms: Mapping[str, int] = field(default_factory=dict)
    latest_ms: int = -1


def judge_sample(memory: GpuMemory, sample: GpuSample, policy: HealthPolicy, now_ms: int) -> tuple[GpuMemory, Findings]:
    """What one sample says of its GPU: new rises at once, standing faults when they begin and each ``restate_s``.

    A sample that is not newer than the last one says nothing. An onset is never later than ``now_ms`` (a host's clock
    may run ahead).
    """
    if sample.at_ms <= memory.latest_ms:
        return memory, NO_FINDINGS
    reading = Reading(memory.node_id, memory.previous, sample)
    if sample.is_lost:
        found = gpu_lost.judge(reading, policy)
        stated_ms, findings = _state(memory.stated_ms, found, sample, policy)
        return replace(memory, stated_ms=stated_ms, latest_ms=sample.at_ms), _not_after(findings, now_ms)
    rises: Findings = NO_FINDINGS
    for detector in RISE_DETECTORS:
        rises += detector.judge(reading, policy)
    windows, standing = clock_events.judge(memory.clock_windows, reading, policy)
    for detector in STANDING_DETECTORS:
        standing += detector.judge(reading, policy)
    stated_ms, stated = memory.stated_ms, NO_FINDINGS
    if standing or stated_ms:
        stated_ms, stated = _state(stated_ms, standing, sample, policy)
    onward = GpuMemory(memory.node_id, _carried(memory.previous, sample), windows, stated_ms, sample.at_ms)
    return onward, _not_after(rises + stated, now_ms)


def judge_signal(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """What one event says. The same event sent twice says the same twice: callers drop known ``signal_id``s."""
    found = NO_FINDINGS
    for detector in SIGNAL_DETECTORS:
        found += detector.judge(signal, policy)
    return found


def closings_of(signal: GpuSignal) -> tuple[Closing, ...]:
    """The standing faults that this event shows to be over, for ``health.evidence.close``."""
    if signal.kind is EventKind.GPU_FOUND:
        return (Closing(gpu_lost.NAME, signal.node_id, signal.gpu_uuid, signal.at_ms),)
    if signal.kind is EventKind.GPU_COUNT and signal.values.get("now", 0) > signal.values.get("before", 0):
        return (Closing(gpu_count.NAME, signal.node_id, None, signal.at_ms, signal.values["now"]),)
    return ()


def closings_between(before: GpuMemory, after: GpuMemory, sample: GpuSample) -> tuple[Closing, ...]:
    """The standing faults that ``sample`` showed to be over: stated before it, and no more after it.

    A rate has no end of its own: clocks that come and go under one load stay one fault, joined by its window.
    """
    over = (key for key in before.stated_ms if key not in after.stated_ms and not key.startswith(clock_events.NAME))
    return tuple(Closing(key, before.node_id, sample.gpu_uuid, sample.at_ms) for key in over)


def _state(
    stated_ms: Mapping[str, int], standing: Findings, sample: GpuSample, policy: HealthPolicy
) -> tuple[Mapping[str, int], Findings]:
    """Which of the faults that stand are to be told now; faults that are seen to stand no more are forgotten."""
    again_ms = int(policy.evidence.restate_s * 1000)
    onward = {key: at_ms for key, at_ms in stated_ms.items() if _says_nothing_of(key, sample)}
    told: list[Finding] = []
    for finding in standing:
        last_ms = stated_ms.get(finding.fault_key)
        is_due = last_ms is None or sample.at_ms - last_ms >= again_ms
        if is_due:
            told.append(finding)
        onward[finding.fault_key] = sample.at_ms if is_due or last_ms is None else last_ms
    return onward, tuple(told)


def _says_nothing_of(fault_key: str, sample: GpuSample) -> bool:
    """Whether ``sample`` lacks the reading that would show if the fault still stands."""
    detector = fault_key.partition(":")[0]
    if detector == gpu_lost.NAME:
        return all(value is None for value in sample.values)
    at = _READING_OF.get(fault_key, _READING_OF.get(detector))
    return at is not None and sample.values[at] is None


def _carried(previous: GpuSample | None, sample: GpuSample) -> GpuSample:
    """The sample, with the last known counters where this poll had none."""
    if previous is None:
        return sample
    values, before = sample.values, previous.values
    if all(values[at] is not None or before[at] is None for at in WATCHED):
        return sample
    merged = list(values)
    for at in _COUNTERS:
        merged[at] = before[at] if values[at] is None else values[at]
    return replace(sample, values=tuple(merged))


def _not_after(findings: Findings, now_ms: int) -> Findings:
    if not findings:
        return findings
    return tuple(each if each.onset_ms <= now_ms else replace(each, onset_ms=now_ms) for each in findings)
