"""The reason why evidence takes no points off the score, as text: readers of a GPU's evidence need it for each 0."""

from collections.abc import Iterable

from health.evidence.proofs import Proofs
from health.evidence.state import is_condemning
from health.evidence.suppression import why_weightless
from health.scoring.score import Score
from muster.domain.evidence.findings import Evidence
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import HealthPolicy


def why_no_points(
    evidence: Iterable[Evidence], score: Score, policy: HealthPolicy, now_ms: int, proofs: Proofs | None
) -> dict[EvidenceId, str]:
    """Return the reason for each evidence that is not in the score's ``shares``.

    ``proofs``: as given to ``score``.
    """
    shares = dict(score.shares)
    return {each.id: _why(each, policy, now_ms, proofs) for each in evidence if each.id not in shares}


def _why(evidence: Evidence, policy: HealthPolicy, now_ms: int, proofs: Proofs | None) -> str:
    if evidence.is_dismissed:
        return "a person dismissed it"
    if evidence.is_suspended:
        return "the program that ran there is suspected"
    if aside := why_weightless(evidence):
        return aside
    if evidence.gpu_uuid is None:
        return "it is about the node"
    if proofs is not None and proofs.answer(evidence):
        return "a later burn-in or repair has answered it"
    severity = evidence.severity.name.lower()
    if policy.score.weight(evidence.severity, evidence.detector).points == 0:
        return f"evidence of severity {severity} is kept and weighs nothing"
    if not is_condemning(evidence) and now_ms - evidence.last_seen_ms >= evidence.counts_for_ms:
        return f"it counted for {evidence.counts_for_ms / 86_400_000:g} days, which have passed"
    return "its fault weighs once, and other evidence of it weighs as much or more"
