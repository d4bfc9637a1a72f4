"""From findings to evidence: one fault is one evidence, however many sources tell it and however often it is stated."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from health.detectors.detector import Closing
from health.same_fault import are_one
from muster.domain.evidence import Evidence, Finding, Severity, Trust
from muster.domain.health_policy import HealthPolicy
from muster.domain.ids import EvidenceId, GpuUuid, NodeId

CLOSED_AT: Final = "closed_at_ms"
"""Key in ``values`` of evidence whose fault was seen to be over."""


@dataclass(frozen=True, slots=True)
class Joined:
    """``evidence`` as it stands now; ``is_new``: it was not there before."""

    evidence: Evidence
    is_new: bool


def join(
    finding: Finding, existing: Iterable[Evidence], policy: HealthPolicy, now_ms: int, new_id: EvidenceId
) -> Joined:
    """The evidence that ``finding`` belongs to: an existing one of the same fault nearby in time, else a new one.

    ``existing``: evidence of the same GPU (or node), in any order. ``new_id`` is used only if it is new. A finding that
    is worse than the evidence is new: joining never makes evidence worse. Times are milliseconds.
    """
    known = replace(finding, onset_ms=min(finding.onset_ms, now_ms))
    near = [each for each in existing if _is_same_fault(known, each, policy)]
    if near:
        return Joined(_joined(max(near, key=lambda each: (each.last_seen_ms, each.id)), known), is_new=False)
    return Joined(_opened(known, policy, now_ms, new_id), is_new=True)


def close(evidence: Evidence, closing: Closing) -> Evidence:
    """The evidence, closed where ``closing`` is about it: it decays from then on, and a later finding opens another."""
    if not is_open(evidence) or evidence.fault_key != closing.fault_key or closing.at_ms < evidence.onset_ms:
        return evidence
    if _place(evidence.gpu_uuid, evidence.node_id) != _place(closing.gpu_uuid, closing.node_id):
        return evidence
    if closing.found is not None and closing.found < evidence.values.get("expected", 0):
        return evidence
    seen_ms = max(evidence.last_seen_ms, closing.at_ms)
    return replace(evidence, last_seen_ms=seen_ms, values={**evidence.values, CLOSED_AT: float(closing.at_ms)})


def is_open(evidence: Evidence) -> bool:
    """Whether nobody has seen its fault to be over. Evidence of a moment (an XID) is never closed, it decays."""
    return CLOSED_AT not in evidence.values


def is_condemning(evidence: Evidence, proof_ms: int | None) -> bool:
    """Whether it quarantines: measured, neither dismissed nor suspended, at any age until a later proof (I26).

    ``proof_ms``: when the newest passed burn-in began, or the newest repair ended.
    """
    return (
        evidence.severity is Severity.CONDEMNING
        and evidence.trust is Trust.MEASURED
        and evidence.gpu_uuid is not None
        and counts(evidence)
        and (proof_ms is None or evidence.last_seen_ms >= proof_ms)
    )


def counts(evidence: Evidence) -> bool:
    """Whether nobody has taken it out of the judgement."""
    return not evidence.is_dismissed and not evidence.is_suspended


def _is_same_fault(finding: Finding, evidence: Evidence, policy: HealthPolicy) -> bool:
    if evidence.trust is not finding.trust or not are_one(evidence.fault_key, finding.fault_key):
        return False
    if _place(evidence.gpu_uuid, evidence.node_id) != _place(finding.gpu_uuid, finding.node_id):
        return False
    if finding.severity > evidence.severity or (finding.threatens_correctness and not evidence.threatens_correctness):
        return False
    if finding.onset_ms > evidence.values.get(CLOSED_AT, finding.onset_ms):
        return False
    window_s = max(_window_s(detector, policy) for detector in (finding.detector, evidence.detector))
    window_ms = int(window_s * 1000)
    return evidence.onset_ms - window_ms <= finding.onset_ms <= evidence.last_seen_ms + window_ms


def _window_s(detector: str, policy: HealthPolicy) -> float:
    if detector in policy.evidence.standing_detectors:
        return policy.evidence.standing_window_s
    is_counter = detector in policy.evidence.counter_detectors
    return policy.evidence.counter_window_s if is_counter else policy.evidence.coalescing_s


def _place(gpu_uuid: GpuUuid | None, node_id: NodeId) -> str:
    """A GPU keeps its faults wherever it is plugged in; what is about no GPU is about its node."""
    return gpu_uuid if gpu_uuid is not None else node_id


def _joined(evidence: Evidence, finding: Finding) -> Evidence:
    sources = evidence.sources if finding.source in evidence.sources else (*evidence.sources, finding.source)
    return replace(
        evidence,
        sources=sources,
        onset_ms=min(evidence.onset_ms, finding.onset_ms),
        last_seen_ms=max(evidence.last_seen_ms, finding.onset_ms),
    )


def _opened(finding: Finding, policy: HealthPolicy, now_ms: int, new_id: EvidenceId) -> Evidence:
    """History that comes late is kept and shown, but weighs nothing unless it condemns (I26)."""
    is_stale = now_ms - finding.onset_ms > policy.evidence.stale_action_s * 1000
    is_acting = not is_stale or (finding.severity is Severity.CONDEMNING and finding.trust is Trust.MEASURED)
    return Evidence(
        id=new_id,
        detector=finding.detector,
        version=finding.version,
        fault_key=finding.fault_key,
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
    )
