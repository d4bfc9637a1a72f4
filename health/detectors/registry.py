"""All detectors, and the entry points.

``judge_sample`` is for readings, ``judge_signal`` for events, ``check_once`` for one check of a host without a past.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from health.detectors import verdict_faults
from health.detectors.detector import (
    NO_FINDINGS,
    NO_OWN_HEAT,
    About,
    Closing,
    Findings,
    OwnHeat,
    Reading,
    SampleDetector,
    own_heat_in,
)
from health.detectors.gpu import freshness, gpu_lost, recovery_action
from health.detectors.load import clock_events, heat
from health.detectors.memory import corrected_remaps, ecc_history, ecc_uncorrected, row_remap
from health.detectors.modes import in_mode
from health.detectors.node import gpu_count, gpus_at_fault
from health.detectors.repeats import repair_repeats
from health.detectors.repeats.repeat import VERSION
from health.detectors.repeats.rules import REPEAT_RULES as REPEATS
from health.detectors.signals import SIGNAL_DETECTORS, alarms, closings_of, judge_signal
from muster.domain.evidence.findings import EventKind, Finding, GpuSample, GpuSignal
from muster.domain.evidence.traits import Nature
from muster.domain.gpu.metrics import INDEX, METRICS
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy

__all__ = [
    "DETECTORS",
    "NATURES",
    "RULES",
    "GpuMemory",
    "alarms",
    "check_once",
    "closings_between",
    "closings_of",
    "judge_sample",
    "judge_signal",
]

RISE_DETECTORS: Final[tuple[SampleDetector, ...]] = (
    ecc_uncorrected.DETECTOR,
    ecc_history.DETECTOR,
    row_remap.RISE_DETECTOR,
    corrected_remaps.DETECTOR,
)
STANDING_DETECTORS: Final[tuple[SampleDetector, ...]] = (
    row_remap.DETECTOR,
    recovery_action.DETECTOR,
    heat.TEMPERATURE_DETECTOR,
    heat.MARGIN_DETECTOR,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the page of detectors. ``reads``: samples, the kinds of events, or evidence."""

    name: str
    version: int
    nature: Nature
    reads: str
    about: About


def _rules() -> tuple[Rule, ...]:
    samples = [
        Rule(each.name, each.version, each.nature, "samples", each.about)
        for each in (*RISE_DETECTORS, *STANDING_DETECTORS, gpu_lost.DETECTOR)
    ]
    clocks = Rule(clock_events.NAME, clock_events.VERSION, Nature.STANDING, "samples", clock_events.ABOUT)
    ages = [
        Rule(freshness.NAME, freshness.VERSION, Nature.STANDING, "samples, time", freshness.ABOUT),
        Rule(freshness.LATENCY, freshness.VERSION, Nature.STANDING, "samples", freshness.LATENCY_ABOUT),
    ]
    events = [
        Rule(each.name, each.version, each.nature, ", ".join(each.kinds), each.about) for each in SIGNAL_DETECTORS
    ]
    again = [Rule(each.name, each.version, Nature.REPEAT, "evidence", each.about) for each in REPEATS]
    together = Rule(gpus_at_fault.NAME, gpus_at_fault.VERSION, Nature.STATE, "evidence", gpus_at_fault.ABOUT)
    repairs = Rule(repair_repeats.NAME, VERSION, Nature.MOMENT, "repairs", repair_repeats.ABOUT)
    verdicts = [
        Rule(name, verdict_faults.VERSION, Nature.MOMENT, "verdicts", about)
        for name, about in verdict_faults.ABOUTS.items()
    ]
    found: dict[str, Rule] = {}
    for rule in (*samples, *ages, clocks, *events, *again, together, repairs, *verdicts):
        known = found.get(rule.name)
        found[rule.name] = rule if known is None else replace(known, reads=f"{known.reads}, {rule.reads}")
    return tuple(found[name] for name in sorted(found))


RULES: Final = _rules()
DETECTORS: Final[Mapping[str, int]] = {rule.name: rule.version for rule in RULES}
"""Name → version of every rule."""
NATURES: Final[Mapping[str, Nature]] = {
    **{rule.name: rule.nature for rule in RULES},
    gpu_count.NAME: Nature.STANDING,
}
"""Name → how long its statements are one fault. A lost GPU's count is stated while it is open, and as a state."""

_COUNTER_POSITIONS: Final = tuple(INDEX[metric.name] for metric in METRICS if metric.kind == "counter")
WATCHED: Final[tuple[int, int, int, int]] = (
    ecc_uncorrected.VOLATILE,
    ecc_uncorrected.AGGREGATE,
    row_remap.UNCORRECTED,
    corrected_remaps.READING,
)
"""Indices in a sample of the counters whose rise is a finding: all that judgement reads of the sample before."""
_READING_OF: Final[Mapping[str, int]] = {
    row_remap.PENDING: row_remap.PENDING_READING,
    row_remap.FAILURE: row_remap.FAILURE_READING,
    row_remap.EXHAUSTED: row_remap.UNCORRECTED,
    recovery_action.NAME: INDEX["recovery_action"],
    clock_events.NAME: INDEX["clock_event_reasons"],
}
"""Fault key, or its detector → the reading that shows whether the fault still stands."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The judgement's memory of one GPU between samples. Keep it per GPU; start with ``GpuMemory(node_id)``.

    After a restart begin from the latest stored sample: ``GpuMemory(node_id, previous=sample)``; standing faults are
    then stated again, and join the evidence that is there. ``latest_ms``: the newest sample judged. ``stated_ms``:
    fault key → when a standing fault was last stated.
    """

    node_id: NodeId
    previous: GpuSample | None = None
    clock_windows: clock_events.Windows = clock_events.NO_WINDOWS
    stated_ms: Mapping[str, int] = field(default_factory=dict)
    latest_ms: int = -1
    model: str = ""
    own_heat: OwnHeat = NO_OWN_HEAT


def judge_sample(memory: GpuMemory, sample: GpuSample, policy: HealthPolicy, now_ms: int) -> tuple[GpuMemory, Findings]:
    """Return the memory after one sample, and its findings.

    Rises are stated at once, standing faults when they begin and each ``restate_s``. A sample that is not newer than
    the last one has no findings. An onset is never later than ``now_ms`` (a host's clock may run ahead).
    """
    if sample.at_ms <= memory.latest_ms:
        return memory, NO_FINDINGS
    reading = Reading(memory.node_id, memory.previous, sample, memory.model, memory.own_heat)
    if sample.is_lost:
        found = gpu_lost.judge(reading, policy)
        stated_ms, findings = _state(memory.stated_ms, found, sample, policy)
        return replace(memory, stated_ms=stated_ms, latest_ms=sample.at_ms), _reported(findings, policy, now_ms)
    rises: Findings = NO_FINDINGS
    for detector in RISE_DETECTORS:
        rises += detector.judge(reading, policy)
    windows, standing = clock_events.judge(memory.clock_windows, reading, policy)
    for detector in STANDING_DETECTORS:
        standing += detector.judge(reading, policy)
    stated_ms, stated = memory.stated_ms, NO_FINDINGS
    if standing or stated_ms:
        stated_ms, stated = _state(stated_ms, standing, sample, policy)
    carried = _carried(memory.previous, sample)
    onward = GpuMemory(memory.node_id, carried, windows, stated_ms, sample.at_ms, memory.model, memory.own_heat)
    return onward, _reported(rises + stated, policy, now_ms)


def check_once(
    node_id: NodeId,
    samples: Iterable[GpuSample],
    signals: Iterable[GpuSignal],
    policy: HealthPolicy,
    now_ms: int,
    models: Mapping[GpuUuid, str] | None = None,
) -> Findings:
    """Return the findings of one check of a host without any past, each finding as it would be kept.

    ``models``: of GPUs, where they are known; limits that depend on the model are the model's then. Rises need a second
    check, rates over samples several; a fault that weighs only if it lasts is stated at once.
    """
    found = list[Finding]()
    events = tuple(signals)
    own = {each.gpu_uuid: own_heat_in(each.values) for each in events if each.kind is EventKind.GPU_STATE}
    for sample in samples:
        own_heat = own.get(sample.gpu_uuid, NO_OWN_HEAT)
        memory = GpuMemory(node_id, model=(models or {}).get(sample.gpu_uuid, ""), own_heat=own_heat)
        found += judge_sample(memory, sample, policy, now_ms)[1]
    for event in events:
        found += judge_signal(event, policy)
    return tuple(found)


def closings_between(before: GpuMemory, after: GpuMemory, sample: GpuSample) -> tuple[Closing, ...]:
    """Return the standing faults that ``sample`` showed to be over: stated before it, and no longer after it.

    A rate has no end of its own: clocks that come and go under one load stay one fault, joined by its window.
    """
    over = (key for key in before.stated_ms if key not in after.stated_ms and not key.startswith(clock_events.NAME))
    return tuple(Closing(key, before.node_id, sample.gpu_uuid, sample.at_ms) for key in over)


def _state(
    stated_ms: Mapping[str, int], standing: Findings, sample: GpuSample, policy: HealthPolicy
) -> tuple[Mapping[str, int], Findings]:
    """Return the memory of standing faults, and the findings to state now.

    Faults that are seen to be over are forgotten.
    """
    again_ms = int(policy.evidence.restate_s * 1000)
    onward = {key: at_ms for key, at_ms in stated_ms.items() if _is_inconclusive_about(key, sample)}
    told: list[Finding] = []
    for finding in standing:
        last_ms = stated_ms.get(finding.fault_key)
        is_due = last_ms is None or sample.at_ms - last_ms >= again_ms
        if is_due:
            told.append(finding)
        onward[finding.fault_key] = sample.at_ms if is_due or last_ms is None else last_ms
    return onward, tuple(told)


def _is_inconclusive_about(fault_key: str, sample: GpuSample) -> bool:
    """Return whether ``sample`` lacks the reading that would show if the fault still stands."""
    detector = fault_key.partition(":")[0]
    if detector in {heat.TEMPERATURE, heat.MARGIN}:
        return heat.is_inconclusive(fault_key, sample.values)
    if detector == gpu_lost.NAME:
        return all(value is None for value in sample.values)
    at = _READING_OF.get(fault_key, _READING_OF.get(detector))
    return at is not None and sample.values[at] is None


def _carried(previous: GpuSample | None, sample: GpuSample) -> GpuSample:
    """Return the sample, with the last known counters where this poll had none."""
    if previous is None:
        return sample
    values, before = sample.values, previous.values
    if all(values[at] is not None or before[at] is None for at in WATCHED):
        return sample
    merged = list(values)
    for at in _COUNTER_POSITIONS:
        merged[at] = before[at] if values[at] is None else values[at]
    return replace(sample, values=tuple(merged))


def _reported(findings: Findings, policy: HealthPolicy, now_ms: int) -> Findings:
    """Return the findings by each rule's mode, and with no onset in the future."""
    if not findings:
        return findings
    return tuple(
        each if each.onset_ms <= now_ms else replace(each, onset_ms=now_ms) for each in in_mode(findings, policy)
    )
