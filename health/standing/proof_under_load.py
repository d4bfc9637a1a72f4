"""Faults that show under load alone, so that idling does not answer them: heat, clocks, links, contained memory errors.

A SUSPECT GPU takes no new work, so its readings get better by themselves. Score and dwell would return it to the next
job, which suffers again: so it is burnt in first (``health.burn_in.needed_after``).

Three things answer a finding: a burn-in that passed and began after the finding was last stated, a repair that ended
after it, or a reading under load, in the work that the GPU still had, that shows its end. Where a burn-in cannot run
(no torch, no agent that answers) and was ABANDONED since, time counts again, as for all other evidence: no GPU waits
without end for a test that its host cannot run, and its falls still count as flapping.

Source: NVSentinel's users ask for it (issue 695: signals that look healthy with no load un-cordon a bad node).
"""

from typing import Final

from health.evidence.state import code_of, counts, is_open
from health.standing.gpu_case import GpuCase, MoveReason, proof_ms_of
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import BurnInPolicy, HealthPolicy
from muster.domain.states import Standing

_IN_SERVICE: Final = frozenset({Standing.PROBATION, Standing.HEALTHY})


def unproved(gpu: GpuCase, policy: HealthPolicy) -> tuple[Evidence, ...]:
    """Return the evidence for which a SUSPECT GPU needs a burn-in before it recovers, oldest first; none for others."""
    if gpu.standing is not Standing.SUSPECT:
        return ()
    cited, answered_ms = _cited(gpu), max(proof_ms_of(gpu) or 0, gpu.could_not_burn_in_ms or 0)
    found = [
        each
        for each in gpu.evidence
        if (each.id in cited or each.last_seen_ms >= gpu.since_ms)
        and shows_under_load(each, policy.burn_in)
        and each.last_seen_ms >= answered_ms
    ]
    return tuple(sorted(found, key=lambda each: (each.onset_ms, each.id)))


def shows_under_load(evidence: Evidence, policy: BurnInPolicy) -> bool:
    """Return whether it is measured, makes SUSPECT by itself, weighs, and is of a kind that shows under load alone."""
    if evidence.severity < Severity.DEGRADED or evidence.trust is not Trust.MEASURED or not counts(evidence):
        return False
    if evidence.traits.is_read_under_load and not is_open(evidence):
        return False
    return evidence.detector in policy.needed_after or code_of(evidence) in policy.needed_after_xids


def _cited(gpu: GpuCase) -> set[EvidenceId]:
    """Return the evidence that its falls to SUSPECT cited, since it was last in service."""
    cited = set[EvidenceId]()
    for move in reversed(gpu.moves):
        if move.to_standing in _IN_SERVICE:
            break
        if move.to_standing is Standing.SUSPECT and move.reason is MoveReason.LOW_SCORE:
            cited.update(move.evidence_ids)
    return cited
