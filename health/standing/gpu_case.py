"""The input of a standing's judgement: one GPU with its evidence, burn-ins, repairs and moves, as plain data."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from health.evidence.proofs import Proofs, condemns
from health.scoring.score import Score, Weighed, score, weigh
from muster.domain.evidence.findings import Evidence
from muster.domain.evidence.repairs import RepairAction
from muster.domain.evidence.traits import FaultGroup
from muster.domain.ids import EvidenceId, GpuUuid
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import STANDING_EDGES, Standing, require_edge

RULE: Final = "rule"
"""The actor of every move that no person made."""


EVERY_GROUP: Final = frozenset(FaultGroup)
ALL_STAGES: Final = EVERY_GROUP - {FaultGroup.LINK}
"""What all stages of a burn-in cover together: one GPU alone uses no NVLink."""


class MoveReason(StrEnum):
    """The reason why a GPU moved. Named constants, so that explanations, metrics and tests agree."""

    BURN_IN_PASSED = "burn_in_passed"
    BURN_IN_FAILED = "burn_in_failed"
    PROBATION_OVER = "probation_over"
    LOW_SCORE = "low_score"
    REPORTED_EVIDENCE = "reported_evidence"
    RECOVERED = "recovered"
    CONDEMNED = "condemned"
    FLAPPING = "flapping"
    REPAIR_STARTED = "repair_started"
    REPAIR_DONE = "repair_done"
    REPAIR_FAILED = "repair_failed"
    REPAIR_TIMED_OUT = "repair_timed_out"
    DISMISSED = "dismissed"
    REPAIRS_USED_UP = "repairs_used_up"
    TO_BE_REPLACED = "to_be_replaced"
    TAKEN_OUT = "taken_out"
    RETIRED = "retired"
    REINSTATED = "reinstated"


@dataclass(frozen=True, slots=True)
class Move:
    """One move between standings, proposed or made.

    ``return_to``: the standing to which SUSPECT or QUARANTINED returns; to be stored with the GPU as its origin.
    ``text``: a person's reason, or the rule's, for people to read. ``at_ms``: wall clock, milliseconds.
    """

    gpu_uuid: GpuUuid
    from_standing: Standing
    to_standing: Standing
    at_ms: int
    reason: MoveReason
    actor: str = RULE
    evidence_ids: tuple[EvidenceId, ...] = ()
    return_to: Standing | None = None
    threatens_correctness: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class BurnInResult:
    """One finished burn-in. An undecided one is no result: leave it out.

    ``covers``: the fault groups that it tested; all in the burn-ins that release 0.1.0 stored.
    """

    began_ms: int
    ended_ms: int
    has_passed: bool
    covers: frozenset[FaultGroup] = EVERY_GROUP


@dataclass(frozen=True, slots=True)
class PastRepair:
    """One ended repair of this board: ``fault_group`` names the repaired faults (such as ``memory``)."""

    fault_group: str
    began_ms: int
    ended_ms: int
    is_done: bool
    action: RepairAction = RepairAction.OTHER


@dataclass(frozen=True, slots=True)
class GpuCase:
    """One GPU before the judge.

    ``since_ms``: when it came to its standing. ``origin``: the standing to which SUSPECT or QUARANTINED returns.
    ``moves``, ``burn_ins``, ``repairs``: its past, oldest first; at least everything within the policy's windows, and
    the newest move to QUARANTINED. ``under_way``: the repair action in REPAIR. ``has_contact``: its readings arrive; a
    silent GPU proves nothing. ``could_not_burn_in_ms``: when a burn-in was last ABANDONED, since it could not run.
    """

    gpu_uuid: GpuUuid
    standing: Standing
    since_ms: int
    evidence: tuple[Evidence, ...] = ()
    origin: Standing | None = None
    moves: tuple[Move, ...] = ()
    burn_ins: tuple[BurnInResult, ...] = ()
    repairs: tuple[PastRepair, ...] = ()
    under_way: RepairAction | None = None
    has_contact: bool = True
    could_not_burn_in_ms: int | None = None


def proofs_of(gpu: GpuCase) -> Proofs | None:
    """Return up to when its faults are answered: when passed burn-ins began, and when repairs ended."""
    repaired_ms = max((repair.ended_ms for repair in gpu.repairs if repair.is_done), default=None)
    covering_ms = {} if repaired_ms is None else dict.fromkeys(FaultGroup, repaired_ms)
    newest_ms = repaired_ms
    for result in gpu.burn_ins:
        if result.has_passed:
            newest_ms = max(result.began_ms, newest_ms or 0)
            covering_ms |= {group: max(result.began_ms, covering_ms.get(group, 0)) for group in result.covers}
    return None if newest_ms is None else Proofs(newest_ms, covering_ms, repaired_ms)


def diagnosed_ms_of(gpu: GpuCase) -> int | None:
    """Return when its newest passed diagnosis began: a burn-in, or a field diagnosis as a repair."""
    passed = [result.began_ms for result in gpu.burn_ins if result.has_passed]
    passed += [each.began_ms for each in gpu.repairs if each.is_done and each.action is RepairAction.FIELD_DIAGNOSIS]
    return max(passed, default=None)


def condemning_of(gpu: GpuCase) -> tuple[Evidence, ...]:
    """Return the evidence that condemns it now, the oldest first."""
    if not gpu.evidence:  # most of a fleet, most of the time
        return ()
    proofs = proofs_of(gpu)
    found = (each for each in gpu.evidence if condemns(each, proofs))
    return tuple(sorted(found, key=lambda each: (each.onset_ms, each.id)))


def score_of(gpu: GpuCase, policy: HealthPolicy, at_ms: int) -> Score:
    return score(gpu.evidence, policy, at_ms, proofs_of(gpu))


def weighed(gpu: GpuCase, policy: HealthPolicy, at_ms: int) -> Weighed:
    """Return ``score_of`` without the time until which its band holds: all that a decision needs."""
    return weigh(gpu.evidence, policy, at_ms, proofs_of(gpu))


def move_to(
    gpu: GpuCase,
    target: Standing,
    reason: MoveReason,
    now_ms: int,
    *,
    actor: str = RULE,
    evidence_ids: tuple[EvidenceId, ...] = (),
    return_to: Standing | None = None,
    text: str = "",
) -> Move:
    """Return a move of ``gpu`` along a listed edge (I21)."""
    require_edge(STANDING_EDGES, gpu.standing, target)
    cited = set(evidence_ids)
    return Move(
        gpu_uuid=gpu.gpu_uuid,
        from_standing=gpu.standing,
        to_standing=target,
        at_ms=now_ms,
        reason=reason,
        actor=actor,
        evidence_ids=evidence_ids,
        return_to=return_to,
        threatens_correctness=any(each.threatens_correctness for each in gpu.evidence if each.id in cited),
        text=text or reason.replace("_", " "),
    )


def moved(gpu: GpuCase, move: Move) -> GpuCase:
    """Return the case once ``move`` has been made."""
    return replace(gpu, standing=move.to_standing, since_ms=move.at_ms, origin=move.return_to, moves=(*gpu.moves, move))


def return_to_of(gpu: GpuCase) -> Standing:
    """Return the standing to which a GPU that falls now returns once cleared; from SUSPECT it is that one's own origin.

    Out of REPAIR it is UNPROVEN: people or a reset changed the GPU, and only a burn-in shows its state.
    """
    if gpu.standing is Standing.SUSPECT:
        return gpu.origin or Standing.PROBATION
    if gpu.standing in {Standing.REPAIR, Standing.QUARANTINED}:
        return Standing.UNPROVEN
    return gpu.standing
