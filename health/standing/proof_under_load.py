"""What shows under load alone, so that no rest answers it: heat, clocks, links, contained memory errors.

A SUSPECT GPU takes nothing new, so its readings get better by themselves. Score and dwell would bring it back to the
next job, which suffers again: so it is burnt in first (``health.burn_in.needed_after``). Three things answer a finding:
a burn-in that passed and began after it was last told, a repair that ended after it, or that it was told to be over by
what is read under load alone, in the work that it still had. Where a burn-in cannot run (no torch, no agent that
answers) and was ABANDONED since, time counts again, as it does for everything else: no GPU waits for ever for what its
host cannot do, and its falls still count as flapping.

Source: NVSentinel's users ask for it (issue 695: signals that look healthy with no load un-cordon a bad node).
"""

from typing import Final

from health.detectors.links import pcie_link
from health.evidence.evidence import counts, is_open
from health.evidence.index import code_of
from health.standing.gpu_case import GpuCase, MoveReason, proof_ms_of
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import BurnInPolicy, HealthPolicy
from muster.domain.states import Standing

_TOLD_UNDER_LOAD: Final = frozenset({pcie_link.NAME})
"""Detectors of states that are read under load alone: such a state that is over was seen to be so under like load."""
_IN_SERVICE: Final = frozenset({Standing.PROBATION, Standing.HEALTHY})


def unproved(gpu: GpuCase, policy: HealthPolicy) -> tuple[Evidence, ...]:
    """The evidence for which a SUSPECT GPU is to be burnt in before it is what it was, oldest first; none of others."""
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
    """Whether it is measured, makes SUSPECT by itself, weighs at all, and is of a kind that shows under load alone."""
    if evidence.severity < Severity.DEGRADED or evidence.trust is not Trust.MEASURED or not counts(evidence):
        return False
    if evidence.detector in _TOLD_UNDER_LOAD and not is_open(evidence):
        return False
    return evidence.detector in policy.needed_after or code_of(evidence) in policy.needed_after_xids


def _cited(gpu: GpuCase) -> set[EvidenceId]:
    """What its falls to SUSPECT were for, since it was last in service."""
    cited = set[EvidenceId]()
    for move in reversed(gpu.moves):
        if move.to_standing in _IN_SERVICE:
            break
        if move.to_standing is Standing.SUSPECT and move.reason is MoveReason.LOW_SCORE:
            cited.update(move.evidence_ids)
    return cited
