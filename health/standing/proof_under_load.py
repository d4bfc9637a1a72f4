"""Faults that show under load alone, so that idling does not answer them: heat, clocks, links, contained memory errors.

A SUSPECT GPU takes no new work, so its readings get better by themselves. Score and dwell would return it to the next
job, which suffers again: so it is burnt in first (``health.burn_in.needed_after``).

Three things answer a finding: a burn-in that passed and began after the finding was last stated, a repair that ended
after it, or a reading under load, in the work that the GPU still had, that shows its end. A burn-in that does not cover
a fault (``health.evidence.proofs``) leaves it: while it is open the GPU stays SUSPECT. Where no source could see its
end, or where a burn-in cannot run (no torch, no agent that answers) and was ABANDONED since, time counts again, as for
all other evidence: no GPU waits without end for a test that its host cannot run, and its falls still count as flapping.

Source: NVSentinel's users ask for it (issue 695: signals that look healthy with no load un-cordon a bad node).
"""

from typing import Final

from health.evidence.proofs import Proofs
from health.evidence.state import code_of, counts, is_open, lasts
from health.standing.gpu_case import GpuCase, MoveReason, proofs_of
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import BurnInPolicy, HealthPolicy
from muster.domain.states import Standing

_IN_SERVICE: Final = frozenset({Standing.PROBATION, Standing.HEALTHY})


def unproved(gpu: GpuCase, policy: HealthPolicy) -> tuple[Evidence, ...]:
    """Return the evidence for which a SUSPECT GPU needs a burn-in before it recovers, oldest first; none for others."""
    if gpu.standing is not Standing.SUSPECT:
        return ()
    cited, could_not_ms, proofs = _cited(gpu), gpu.could_not_burn_in_ms or 0, proofs_of(gpu)
    found = [
        each
        for each in gpu.evidence
        if (each.id in cited or each.last_seen_ms >= gpu.since_ms)
        and shows_under_load(each, policy.burn_in)
        and each.last_seen_ms >= could_not_ms
        and not (proofs is not None and _is_settled(each, proofs))
    ]
    return tuple(sorted(found, key=lambda each: (each.onset_ms, each.id)))


def untested(gpu: GpuCase, policy: HealthPolicy) -> tuple[Evidence, ...]:
    """Return the ``unproved`` evidence after which no burn-in has passed: another would test no more of the rest."""
    proofs = proofs_of(gpu)
    return tuple(each for each in unproved(gpu, policy) if proofs is None or each.last_seen_ms >= proofs.newest_ms)


def _is_settled(evidence: Evidence, proofs: Proofs) -> bool:
    """Return whether the proofs answer it, or one is newer and only time can show its end."""
    stands = lasts(evidence) and is_open(evidence)
    return proofs.answer(evidence) or (not stands and evidence.last_seen_ms < proofs.newest_ms)


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
