"""Decision and storage of moves of standing, within the circuit breaker (I10). One transaction a ruling."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork
from control.evidence.rows import REMEMBERED, is_pending, store_outlasted
from control.health.breaker_cordons import keep_holds
from control.health.cases import cases_of
from control.health.repairs import end_repair
from control.health.retirements import keep_proposals
from control.health.tainting import taint_those_that_ended
from control.incidents.incidents import open_incident
from control.policy.policies import active_policy
from health.evidence.suppression import awaits_contact
from health.standing import breaker
from health.standing.breaker import BreakerState, FleetCounts, GpuPlace
from health.standing.gpu_case import GpuCase, Move, score_of
from health.standing.proof_under_load import unproved
from health.standing.rest import require_rest
from health.standing.standing import decide, next_evaluation_ms
from muster.db.models import Allocation, AllocationGpu, Breaker, EvidenceRow, Gpu, GpuStandingChange, Node
from muster.db.queries.gpu_standings import write_standings
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.ids import GpuUuid, TenantId
from muster.domain.policy.health import HealthPolicy
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import AllocationState, Standing
from muster.domain.times import to_ms, to_time

BREAKER: Final = "quarantine"
PROPOSED_AGAIN_MS: Final = 60_000
"""Interval after which a move that the breaker held back is decided again."""

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
    allowed = admitted_by_breaker(unit, moves, policy) if moves else ()
    held_back = {move.gpu_uuid: move for move in moves if move not in allowed}
    keep_holds(unit, gpus, held_back)
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


def admitted_by_breaker(unit: UnitOfWork, moves: Sequence[Move], policy: HealthPolicy) -> tuple[Move, ...]:
    """Return the moves that the breaker admits. Persons' moves always pass; the breaker counts them all the same."""
    now_ms = to_ms(unit.now)
    row, state = locked_breaker(unit)
    ruling = breaker.admit(moves, state, fleet_counts(unit.session, [move.gpu_uuid for move in moves]), policy, now_ms)
    stored: dict[str, Any] = msgspec.to_builtins(ruling.state)
    if stored != row.state:
        row.state = stored
    if ruling.incident is not None:
        _open_incident(unit, ruling.incident)
    return ruling.allowed


def locked_breaker(unit: UnitOfWork) -> tuple[Breaker, BreakerState]:
    """Lock the breaker's row until the commit, and return its newest state: processes count each other's moves."""
    row = unit.session.get_one(Breaker, BREAKER, with_for_update=True, populate_existing=True)
    return row, msgspec.convert(row.state, BreakerState)


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
    for allowed in admitted_by_breaker(unit, [move], policy):
        apply_transition(unit, gpu, allowed, version)


def _open_incident(unit: UnitOfWork, found: breaker.BreakerIncident) -> None:
    scopes = ", ".join(f"{scope} (cap {cap})" for scope, cap in sorted(found.caps.items()))
    summary = f"the quarantine breaker opened: {scopes}; {len(found.gpu_uuids)} GPUs wait for a person"
    payload = {"scopes": dict(found.caps), "gpus": list(found.gpu_uuids)}
    open_incident(unit, IncidentKind.BREAKER_OPEN, "breaker", BREAKER, summary, payload)


def fleet_counts(session: Session, uuids: Sequence[GpuUuid]) -> FleetCounts:
    """Return the number of GPUs, the places of ``uuids``, and the tenants that hold them."""
    groups = session.execute(
        select(Node.rack, Gpu.cohort_key, func.count())
        .join(Gpu, Gpu.node_id == Node.id)
        .where(Gpu.standing != Standing.RETIRED)
        .group_by(Node.rack, Gpu.cohort_key)
    ).all()
    by_rack, by_cohort = Counter[str](), Counter[str]()
    for rack, cohort, count in groups:
        by_cohort[cohort] += count
        if rack is not None:
            by_rack[rack] += count
    held = AllocationGpu.state == AllocationState.ASSIGNED
    by_tenant = session.execute(
        select(Allocation.tenant_id, func.count())
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(held)
        .group_by(Allocation.tenant_id)
    ).all()
    holders: dict[GpuUuid, TenantId] = dict(
        session.execute(
            select(AllocationGpu.gpu_uuid, Allocation.tenant_id)
            .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
            .where(held, AllocationGpu.gpu_uuid.in_(uuids))
        ).all()
    )
    places = session.execute(
        select(Gpu.uuid, Node.rack, Gpu.cohort_key).join(Node, Node.id == Gpu.node_id).where(Gpu.uuid.in_(uuids))
    ).all()
    return FleetCounts(
        num_gpus=by_cohort.total(),
        by_rack=by_rack,
        by_cohort=by_cohort,
        by_tenant=dict(by_tenant),
        places={uuid: GpuPlace(rack, cohort, holders.get(uuid)) for uuid, rack, cohort in places},
    )
