"""The way from findings to evidence: one fault is one evidence, whatever the number of sources and statements."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from health.detectors.detector import Closing
from health.detectors.gpu import xid
from health.detectors.node import gpu_count
from health.detectors.registry import NATURES
from health.detectors.repeats.repeat import BURST_MS, TIMES
from health.detectors.traits import traits_of
from health.evidence.index import EvidenceIndex
from health.evidence.same_fault import are_one
from health.evidence.state import CODE, is_open, lasts
from health.evidence.suppression import OVERRULED, again, is_of_another_boot, suppressed
from health.evidence.times import IDENTIFYING, is_another_time, is_of_its_burst
from health.xid.reading import RECOVERY_ACTION_CHANGED
from muster.domain.evidence.findings import Evidence, Finding, Severity, Source, Suppression, Trust
from muster.domain.evidence.traits import Nature
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.policy.gpu_detectors import RepeatPolicy
from muster.domain.policy.health import HealthPolicy


@dataclass(frozen=True, slots=True)
class Joined:
    """``evidence`` as it stands now; ``is_new``: it was not there before."""

    evidence: Evidence
    is_new: bool


def join(
    finding: Finding, existing: Iterable[Evidence], policy: HealthPolicy, now_ms: int, new_id: EvidenceId
) -> Joined:
    """Return the evidence of ``finding``: existing evidence of the same fault nearby in time, else new evidence.

    ``existing``: evidence of the same GPU (or node), in any order. ``new_id`` is used only if it is new. A finding that
    is worse than the evidence is new: joining never makes evidence worse. Times are milliseconds.
    """
    known = replace(finding, onset_ms=min(finding.onset_ms, now_ms))
    near = [each for each in existing if _is_same_fault(known, each, policy)]
    if near:
        newest = max(near, key=lambda each: (each.last_seen_ms, each.id))
        joined = _joined(newest, _as_of(newest, known))
        if not _is_stale(known, policy, now_ms):  # it weighs though its first report came too late
            joined = replace(joined, counts_for_ms=joined.counts_for_ms or known.counts_for_ms)
        return Joined(joined, is_new=False)
    return Joined(_opened(known, policy, now_ms, new_id), is_new=True)


def near(finding: Finding, known: EvidenceIndex, policy: HealthPolicy, now_ms: int) -> list[Evidence]:
    """Return all of ``known`` that ``finding`` might join, and little else.

    ``join`` finds the same in it as in the whole.
    """
    onset_ms, found = min(finding.onset_ms, now_ms), list[Evidence]()
    for shelf, detectors in known.faults_like(finding.fault_key):
        reach_ms = _reach_ms({finding.detector, *detectors}, policy)
        found += [each for each in known.on(shelf, onset_ms - reach_ms) if each.onset_ms <= onset_ms + reach_ms]
    return found


def _reach_ms(detectors: Collection[str], policy: HealthPolicy) -> int:
    """Return the largest distance between a finding and the evidence that it joins, by any rule."""
    windows_s = [_window_s(each, policy) for each in detectors]
    others_s = policy.evidence.dcgm_window_s, policy.detectors.fatal_repeats.gap_s
    return max(int(max(*windows_s, *others_s) * 1000), _words_wait_ms(policy), BURST_MS)


def close(evidence: Evidence, closing: Closing) -> Evidence:
    """Return the evidence, closed where ``closing`` is about it: it decays from then on."""
    if not is_open(evidence) or evidence.fault_key != closing.fault_key or closing.at_ms < evidence.onset_ms:
        return evidence
    if place_of(evidence.gpu_uuid, evidence.node_id) != place_of(closing.gpu_uuid, closing.node_id):
        return evidence
    if closing.found is not None and closing.found < evidence.values.get("expected", 0):
        return evidence
    seen_ms = max(evidence.last_seen_ms, closing.at_ms)
    return evidence.changed_to(replace(evidence, last_seen_ms=seen_ms, closed_at_ms=closing.at_ms))


def after_maintenance(evidence: Evidence, now_ms: int) -> Evidence:
    """Return the evidence, weighing from now on if it was found during maintenance and still stands after it."""
    if Suppression.MAINTENANCE not in evidence.suppressed_by or not is_open(evidence) or not lasts(evidence):
        return evidence
    left = evidence.suppressed_by - {Suppression.MAINTENANCE}
    return evidence.changed_to(replace(evidence, suppressed_by=left, last_seen_ms=max(evidence.last_seen_ms, now_ms)))


def place_of(gpu_uuid: GpuUuid | None, node_id: NodeId) -> str:
    """Return the identity of the place of a fault: a GPU keeps its faults in any node; others belong to the node."""
    return gpu_uuid if gpu_uuid is not None else node_id


def superseded_by(evidence: Evidence, known: Iterable[Evidence], policy: HealthPolicy) -> tuple[Evidence, ...]:
    """Return NVML's evidence of an NVLink error that the log's text in the new ``evidence`` replaces, marked so."""
    if xid.HAS_WORDS not in evidence.values:
        return ()
    wait_ms = _words_wait_ms(policy)
    return tuple(
        suppressed(each, Suppression.SUPERSEDED)
        for each in known
        if each.pending is not None
        and Suppression.SUPERSEDED not in each.suppressed_by
        and each.fault_key == evidence.fault_key
        and each.gpu_uuid == evidence.gpu_uuid
        and abs(each.onset_ms - evidence.onset_ms) <= wait_ms
    )


def lessened_by(finding: Finding, known: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the evidence of a worse count of GPUs, closed just before the ``finding`` that opens another."""
    if finding.detector != gpu_count.NAME:
        return ()
    over_ms = finding.onset_ms - 1
    return tuple(
        each.changed_to(replace(each, closed_at_ms=over_ms))
        for each in known
        if each.fault_key == finding.fault_key
        and each.severity > finding.severity
        and each.last_seen_ms <= over_ms
        and is_open(each)
    )


def _is_same_fault(finding: Finding, evidence: Evidence, policy: HealthPolicy) -> bool:
    if evidence.trust is not finding.trust or not are_one(evidence.fault_key, finding.fault_key):
        return False
    if place_of(evidence.gpu_uuid, evidence.node_id) != place_of(finding.gpu_uuid, finding.node_id):
        return False
    aside = evidence.suppressed_by
    if finding.suppressed_by != aside and not (aside <= OVERRULED and _is_also_reported(finding, evidence)):
        return False
    if xid.is_of_another_link(finding.values, evidence.values):
        return False
    if _is_words_apart(finding, evidence):
        wait_ms = max(_words_wait_ms(policy), _late_ms(finding, evidence, policy))
        return xid.HAS_WORDS in evidence.values and abs(finding.onset_ms - evidence.onset_ms) <= wait_ms
    if finding.severity > evidence.severity or (finding.threatens_correctness and not evidence.threatens_correctness):
        return False
    late_ms = _late_ms(finding, evidence, policy)
    closed_ms = evidence.closed_at_ms
    if closed_ms is not None and finding.onset_ms - late_ms > closed_ms and not _hovers(evidence):
        return False
    window_s = max(_window_s(detector, policy) for detector in (finding.detector, evidence.detector))
    window_ms = max(int(window_s * 1000), late_ms)
    is_near = evidence.onset_ms - window_ms <= finding.onset_ms <= evidence.last_seen_ms + window_ms
    return is_near or is_of_its_burst(finding, evidence, policy)


def _is_also_reported(finding: Finding, evidence: Evidence) -> bool:
    """Return whether another source states the same fault without a mark. The same source would state a new one."""
    is_plain = not finding.suppressed_by
    return is_plain and finding.fault_key == evidence.fault_key and finding.source not in evidence.sources


def _hovers(evidence: Evidence) -> bool:
    """Return whether it continues when its fault recurs after its end: a reading that hovers at its limit is one fault.

    It does not where a person dismissed it or a suspicion suspended it: a later fault is new. A node's fault opens new
    evidence each time, since it keeps the node out by turns. A count of GPUs that keeps nothing out is one fault
    however often it flaps.
    """
    if evidence.is_dismissed or evidence.is_suspended:
        return False
    if evidence.detector == gpu_count.NAME:
        return evidence.severity < Severity.DEGRADED
    return evidence.gpu_uuid is not None and lasts(evidence)


def _is_stale(finding: Finding, policy: HealthPolicy, now_ms: int) -> bool:
    return now_ms - finding.onset_ms > policy.evidence.stale_action_s * 1000


def _is_words_apart(finding: Finding, evidence: Evidence) -> bool:
    """Return whether one of the two is an NVLink error that waits for the log's text, and the other has that text."""
    if finding.fault_key != evidence.fault_key or finding.detector != xid.NAME:
        return False
    waits = finding.pending is not None, evidence.pending is not None
    has_words = xid.HAS_WORDS in finding.values, xid.HAS_WORDS in evidence.values
    return (waits[0] and has_words[1]) or (waits[1] and has_words[0])


def _words_wait_ms(policy: HealthPolicy) -> int:
    return int(max(policy.warm_up.log_wait_s, policy.evidence.coalescing_s) * 1000)


def _late_ms(finding: Finding, evidence: Evidence, policy: HealthPolicy) -> int:
    """Return by how much the two times may differ where DCGM alone states one of them.

    DCGM states faults later than NVML and the log.
    """
    is_late = (finding.source is Source.DCGM) is not (evidence.sources == (Source.DCGM,))
    return int(policy.evidence.dcgm_window_s * 1000) if is_late else 0


def _as_of(evidence: Evidence, finding: Finding) -> Finding:
    """Return the finding, its onset moved back where DCGM states an XID after others: it is no newer than theirs."""
    if finding.detector != xid.NAME or finding.source is not Source.DCGM or evidence.sources == (Source.DCGM,):
        return finding
    return replace(finding, onset_ms=min(finding.onset_ms, evidence.last_seen_ms))


def _window_s(detector: str, policy: HealthPolicy) -> float:
    tells = NATURES.get(detector, Nature.MOMENT)
    if tells is Nature.REPEAT:
        rule: RepeatPolicy = getattr(policy.detectors, detector)
        return rule.window_s
    if tells is Nature.STATE or detector == gpu_count.NAME:
        return policy.evidence.state_window_s
    if tells is not Nature.MOMENT or detector in policy.evidence.standing_detectors:
        return policy.evidence.standing_window_s
    is_counter = detector in policy.evidence.counter_detectors
    return policy.evidence.counter_window_s if is_counter else policy.evidence.coalescing_s


def _joined(evidence: Evidence, finding: Finding) -> Evidence:
    sources = evidence.sources if finding.source in evidence.sources else (*evidence.sources, finding.source)
    joined = _with_what_it_adds(evidence, finding)
    if is_another_time(evidence, finding):
        joined = replace(joined, values={**joined.values, TIMES: joined.values.get(TIMES, 1.0) + 1})
    is_over = evidence.closed_at_ms is not None and finding.onset_ms > evidence.closed_at_ms
    is_anew = finding.onset_ms > evidence.last_seen_ms and is_of_another_boot(joined.pending, finding.pending)
    if is_over or is_anew:
        joined = again(joined, finding, finding.onset_ms)
    return evidence.changed_to(
        replace(
            joined,
            sources=sources,
            onset_ms=min(evidence.onset_ms, finding.onset_ms),
            last_seen_ms=max(evidence.last_seen_ms, finding.onset_ms),
        )
    )


def _with_what_it_adds(evidence: Evidence, finding: Finding) -> Evidence:
    """Return a fault's evidence after a second source states it: with its code, place and boot, where it had none.

    Nothing is added where the two state different places. The request for an action (XID 154) is no fault's own code.
    """
    known, told = evidence.values, finding.values
    values = {name: value for name, value in known.items() if (name, value) != (CODE, RECOVERY_ACTION_CHANGED)}
    if any(values.get(name, told[name]) != told[name] for name in IDENTIFYING if name in told):
        return replace(evidence, values=dict(known))
    added = {name: value for name, value in told.items() if name not in values}
    pending = evidence.pending
    if pending is not None and pending.boot_mark is None and finding.pending is not None:
        pending = replace(pending, boot_mark=finding.pending.boot_mark)
    return replace(evidence, values={**known, **added}, pending=pending)


def _opened(finding: Finding, policy: HealthPolicy, now_ms: int, new_id: EvidenceId) -> Evidence:
    """Return new evidence. A late finding is kept and shown, but weighs nothing unless it condemns (I26)."""
    is_acting = not _is_stale(finding, policy, now_ms) or (
        finding.severity is Severity.CONDEMNING and finding.trust is Trust.MEASURED
    )
    return Evidence(
        id=new_id,
        detector=finding.detector,
        version=finding.version,
        fault_key=finding.fault_key,
        traits=traits_of(finding.detector, finding.fault_key),
        gpu_uuid=finding.gpu_uuid,
        node_id=finding.node_id,
        severity=finding.severity,
        trust=finding.trust,
        sources=(finding.source,),
        onset_ms=finding.onset_ms,
        last_seen_ms=finding.onset_ms,
        counts_for_ms=finding.counts_for_ms if is_acting else 0,
        summary=finding.summary,
        threatens_correctness=finding.threatens_correctness,
        values=dict(finding.values),
        suppressed_by=finding.suppressed_by,
        pending=finding.pending,
    )
