"""Decision and storage of moves of standing, within the circuit breaker (I10). One transaction a ruling."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select

from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork
from control.evidence.rows import REMEMBERED, is_pending, store_outlasted
from control.health.breaker_cordons import keep_correctness_cordons
from control.health.capacity import admit_moves
from control.health.cases import cases_of
from control.health.proposals import PROPOSED_AGAIN_MS, Proposal
from control.health.proposals import keep as keep_breaker_proposals
from control.health.repairs import end_repair
from control.health.retirements import keep_proposals
from control.health.tainting import taint_those_that_ended
from control.policy.policies import active_policy
from health.evidence.suppression import awaits_contact
from health.standing.account import Way
from health.standing.gpu_case import GpuCase, Move, score_of
from health.standing.proof_under_load import unproved
from health.standing.rest import require_rest
from health.standing.standing import decide, next_evaluation_ms
from muster.db.models import EvidenceRow, Gpu, GpuStandingChange
from muster.db.queries.gpu_standings import write_standings
from muster.domain.ids import GpuUuid
from muster.domain.policy.health import HealthPolicy
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Standing
from muster.domain.times import to_ms, to_time

AWAITS_CONTACT: Final = (Standing.PROBATION, Standing.SUSPECT)
RECHECK_SILENT_MS: Final = 10_000
"""Interval after which a silent GPU is judged again. It proves nothing, so its time may end without an effect."""


def judge_gpus(unit: UnitOfWork, gpus: Sequence[Gpu], policy: HealthPolicy, policy_version: int | None) -> int:
    """Score locked GPUs and make the moves that the rules decide. Return how many moved.

    Raises:
        RestlessRulesError: the rules move a GPU to and fro. The judge sets it aside, with an incident.
    """
    now_ms = to_ms(unit.now)
    settle_pending(unit, [gpu.uuid for gpu in gpus])
    cases = cases_of(unit, gpus)
    moves = [move for case in cases.values() if (move := decide(case, now_ms, policy)) is not None]
    for move in moves:
        require_rest(cases[move.gpu_uuid], move, policy)
    allowed = admit_moves(unit, moves, policy) if moves else ()
    held_back = {move.gpu_uuid: move for move in moves if move not in allowed}
    keep_correctness_cordons(unit, gpus, held_back)
    proposed = {
        uuid: Proposal(move.text, move.to_standing, move.threatens_correctness) for uuid, move in held_back.items()
    }
    keep_breaker_proposals(unit, Way.STANDING, [gpu.uuid for gpu in gpus], proposed)
    keep_proposals(unit, gpus, cases, policy)
    for gpu in gpus:
        _store_score(gpu, cases[gpu.uuid], policy, now_ms, is_proposed=gpu.uuid in held_back)
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for move in allowed:
        apply_transition(unit, by_uuid[move.gpu_uuid], move, policy_version)
    write_standings(unit.session, gpus)
    wrong_since = {
        move.gpu_uuid: _onset_of(move, cases[move.gpu_uuid], now_ms)
        for move in allowed
        if move.threatens_correctness and move.to_standing in OUT_OF_SERVICE
    }
    if wrong_since:
        taint_those_that_ended(unit, wrong_since, active_policy(unit.session))
    return len(allowed)


def _onset_of(move: Move, case: GpuCase, now_ms: int) -> datetime:
    """Return the earliest onset of the evidence that the move cites, or now."""
    cited = [each.onset_ms for each in case.evidence if each.id in move.evidence_ids]
    return to_time(min(cited, default=now_ms))


def settle_pending(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> None:
    """Give weight to pending evidence that has outlasted its time."""
    waiting = select(EvidenceRow).where(
        EvidenceRow.gpu_uuid.in_(uuids), EvidenceRow.last_seen_at > unit.now - REMEMBERED, is_pending()
    )
    store_outlasted(unit, unit.session.scalars(waiting).all())


def _store_score(gpu: Gpu, case: GpuCase, policy: HealthPolicy, now_ms: int, *, is_proposed: bool) -> None:
    found = score_of(case, policy, now_ms)
    gpu.score = int(found.value)
    gpu.score_valid_until = None if found.valid_until_ms is None else to_time(found.valid_until_ms)
    due_ms = next_evaluation_ms(case, now_ms, policy, found)
    waits = any(awaits_contact(each, now_ms) for each in case.evidence)
    if waits or (not case.has_contact and case.standing in AWAITS_CONTACT):
        due_ms = min(due_ms or now_ms + RECHECK_SILENT_MS, now_ms + RECHECK_SILENT_MS)
    if unproved(case, policy):  # the reason why no burn-in was ordered may be over
        again_ms = now_ms + int(policy.burn_in.again_s * 1000)
        due_ms = min(due_ms or again_ms, again_ms)
    if is_proposed:
        due_ms = min(due_ms or now_ms + PROPOSED_AGAIN_MS, now_ms + PROPOSED_AGAIN_MS)
    gpu.judge_at = None if due_ms is None else to_time(due_ms)


def apply_transition(unit: UnitOfWork, gpu: Gpu, move: Move, policy_version: int | None) -> None:
    """Store one move as a row, with its event. The GPU is judged again at once: its next rule may be due."""
    if move.from_standing is Standing.REPAIR:
        end_repair(unit, gpu, move)
    gpu.standing, gpu.origin_standing = move.to_standing, move.return_to
    gpu.standing_since = gpu.judge_at = unit.now
    unit.session.add(
        GpuStandingChange(
            gpu_uuid=gpu.uuid,
            origin=move.from_standing,
            target=move.to_standing,
            at=unit.now,
            reason=move.text,
            actor=unit.principal.name,
            policy_version=policy_version,
            move_reason=move.reason,
            evidence_ids=list(move.evidence_ids),
        )
    )
    payload = {
        "from": move.from_standing,
        "to": move.to_standing,
        "cause": move.reason,
        "reason": move.text,
        "evidence_ids": list(move.evidence_ids),
        "threatens_correctness": move.threatens_correctness,
    }
    unit.emit(f"gpu.{move.to_standing.lower()}", "gpu", gpu.uuid, payload=payload)
    unit.wake(SCHEDULER_CHANNEL)


def make_audited(
    unit: UnitOfWork,
    gpu: Gpu,
    move: Move,
    action: str,
    policy: HealthPolicy,
    version: int | None,
    *,
    reason: str,
    **detail: Any,
) -> None:
    """Store the audit entry of a move that a person, agent or repair rule requested, and the move if admitted."""
    told = {"from": move.from_standing, "to": move.to_standing, **detail}
    unit.audit(action, "gpu", gpu.uuid, reason=reason, detail=told)
    for allowed in admit_moves(unit, [move], policy):
        apply_transition(unit, gpu, allowed, version)
