"""Evacuation: an attempt on a GPU that may take no work any more is stopped, and its job continues elsewhere.

The work is found from the database, not from a message: if a quarantine's evacuation was interrupted, the next round
carries it out. Where the finding threatens correctness the job stops at once, and its checkpoints since the fault's
onset (minus a margin) are TAINTED; else it is given time for a checkpoint. Such a finding does not wait for the breaker
(I10): the GPU keeps its standing under a placement hold, and its job leaves. It has the same effect where it comes
later: whatever stops the attempt already, the attempt has to leave as soon as if the finding had been there first. A
GPU that a person took out by an override is left in the same way. An attempt elsewhere that continued from a tainted
checkpoint is stopped too (``taint_lineage``): its job continues from the newest checkpoint that is not tainted.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Select, and_, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from control.attempts.attempts import LoadedAttempt, lock_attempt, stop_attempt
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.health.breaker_cordons import MAY_COMPUTE_WRONG
from control.health.cases import cases_of
from control.health.tainting import taint_users, tainted_from
from control.policy.policies import active_policy
from health.standing.gpu_case import condemning_of
from health.standing.standing import decide
from muster.db.models import Allocation, AllocationGpu, Attempt, EvidenceRow, Gpu, GpuStandingChange
from muster.db.queries.effective_standing import effective_standing
from muster.domain.ids import AttemptId, EvidenceId, GpuUuid
from muster.domain.policy.document import Policy
from muster.domain.principals import Principal
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import STOP_URGENCY, AllocationState, AttemptState, StopReason
from muster.domain.times import to_ms

EVACUATE: Final = declare_action("judge.evacuate")


def to_be_left(now: datetime) -> ColumnElement[bool]:
    """Return the condition on a GPU to be left: it is out, a person took it out, or it may compute wrong."""
    return or_(effective_standing(now).in_(OUT_OF_SERVICE), MAY_COMPUTE_WRONG)


def evacuate_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Stop each attempt that is tainted or holds a GPU to be left, and that nothing as urgent stops yet.

    Return how many.

    One that fails does not stop the others: its fault is raised after all have had their turn.
    """
    with units.read() as session:
        attempt_ids = attempts_to_leave(session, units.clock())
    faults: list[Exception] = []
    num_stopped = 0
    for attempt_id in attempt_ids:
        try:
            num_stopped += retrying(lambda attempt_id=attempt_id: _evacuate(units, principal, attempt_id))  # type: ignore[misc]  # bound at once
        except Exception as fault:  # noqa: BLE001  # raised below, whatever it is
            fault.add_note(f"evacuating {attempt_id}")
            faults.append(fault)
    if faults:
        raise faults[0]
    return num_stopped


def attempts_to_leave(session: Session, now: datetime) -> Sequence[AttemptId]:
    """Return the attempts that are tainted or hold a GPU to be left, and that ``evacuate`` has to check."""
    return session.scalars(_to_be_checked(now)).all()


def _to_be_checked(now: datetime) -> Select[AttemptId]:
    """Return the query of attempts to check.

    An attempt that is stopped as urgently already is among them only where its results may be wrong: it may have too
    much time then.
    """
    urgent = [reason for reason in StopReason if STOP_URGENCY[reason] >= STOP_URGENCY[StopReason.EVACUATION]]
    holds = (
        select(Allocation.attempt_id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .join(Gpu, Gpu.uuid == AllocationGpu.gpu_uuid)
        .where(AllocationGpu.state == AllocationState.ASSIGNED, to_be_left(now))
    )
    doubted = select(EvidenceRow.gpu_uuid).where(EvidenceRow.threatens_correctness, EvidenceRow.dismissed_at.is_(None))
    is_tainted = Attempt.tainted_since.is_not(None)
    return select(Attempt.id).where(
        Attempt.state != AttemptState.ENDED,
        Attempt.ending_cause.is_(None),
        or_(
            and_(
                or_(Attempt.stop_reason.is_(None), Attempt.stop_reason.not_in(urgent)),
                or_(is_tainted, Attempt.id.in_(holds)),
            ),
            and_(Attempt.stop_reason.in_(urgent), or_(is_tainted, Attempt.id.in_(holds.where(Gpu.uuid.in_(doubted))))),
        ),
    )


def _evacuate(units: UnitOfWorkFactory, principal: Principal, attempt_id: AttemptId) -> bool:
    with units.begin(principal, EVACUATE) as unit:
        return evacuate(unit, attempt_id)


def evacuate(unit: UnitOfWork, attempt_id: AttemptId) -> bool:
    """Ask the attempt to leave, or to leave sooner. Return whether it was asked."""
    loaded = lock_attempt(unit, attempt_id)
    out = _gpus_out(unit, loaded)
    is_tainted = loaded.attempt.tainted_since is not None
    if loaded.attempt.state is AttemptState.ENDED or not (out or is_tainted):
        return False
    policy = active_policy(unit.session)
    threats = [row for row in _grounds(unit, out) if row.threatens_correctness]
    onset = min((row.onset_at for row in threats), default=None)
    threatens_correctness = is_tainted or onset is not None
    grace_s = policy.evacuation.correctness_grace_s if threatens_correctness else policy.evacuation.grace_s
    grace = timedelta(seconds=grace_s)
    if _is_stopped_as_urgently(loaded.attempt) and (
        not threatens_correctness or _is_settled(loaded.attempt, unit.now + grace, onset, policy)
    ):
        return False
    payload = {"job_id": loaded.job.id, "gpus": out, "threatens_correctness": threatens_correctness}
    if onset is not None:
        payload["tainted"] = taint_users(unit, out, onset, policy, alongside=[loaded.attempt.id])
    tenant_id = loaded.attempt.tenant_id
    unit.emit("attempt.evacuating", "attempt", loaded.attempt.id, tenant_id=tenant_id, payload=payload)
    stop_attempt(unit, loaded, StopReason.EVACUATION, policy, grace=grace)
    return True


def _is_stopped_as_urgently(attempt: Attempt) -> bool:
    reason = attempt.stop_reason
    return reason is not None and STOP_URGENCY[reason] >= STOP_URGENCY[StopReason.EVACUATION]


def _is_settled(attempt: Attempt, deadline: datetime, onset: datetime | None, policy: Policy) -> bool:
    """Return whether it has to leave by ``deadline`` or sooner, and is tainted from the threat's ``onset`` on."""
    if attempt.stop_deadline_at is None or attempt.stop_deadline_at > deadline:
        return False
    if onset is None:
        return True
    return attempt.tainted_since is not None and attempt.tainted_since <= tainted_from(onset, policy)


def _gpus_out(unit: UnitOfWork, loaded: LoadedAttempt) -> list[GpuUuid]:
    query = (
        select(Gpu.uuid)
        .join(AllocationGpu, AllocationGpu.gpu_uuid == Gpu.uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .where(Allocation.attempt_id == loaded.attempt.id, to_be_left(unit.now))
        .order_by(Gpu.uuid)
    )
    return list(unit.session.scalars(query).all())


def _grounds(unit: UnitOfWork, gpus: Sequence[GpuUuid]) -> Sequence[EvidenceRow]:
    """Return the evidence for which these GPUs are to be left.

    For a GPU that is out: the evidence of its move, and condemning evidence since. For a GPU that is not out: the
    evidence on which the rules would move it if the breaker let them. A GPU that a person took out has only the latter:
    its results are in doubt only if evidence states it.
    """
    newest = (
        select(GpuStandingChange.evidence_ids)
        .join(Gpu, Gpu.uuid == GpuStandingChange.gpu_uuid)
        .where(Gpu.uuid.in_(gpus), Gpu.standing.in_(OUT_OF_SERVICE), GpuStandingChange.target.in_(OUT_OF_SERVICE))
        .ext(distinct_on(GpuStandingChange.gpu_uuid))
        .order_by(GpuStandingChange.gpu_uuid, GpuStandingChange.id.desc())
    )
    cited = [EvidenceId(each) for ids in unit.session.scalars(newest) for each in ids]
    cited += _condemning(unit, gpus)
    return unit.session.scalars(select(EvidenceRow).where(EvidenceRow.id.in_(cited))).all()


def _condemning(unit: UnitOfWork, gpus: Sequence[GpuUuid]) -> list[EvidenceId]:
    """Return the evidence on which the rules would take each GPU out, also where it is out already."""
    rows = unit.session.scalars(select(Gpu).where(Gpu.uuid.in_(gpus))).all()
    policy, now_ms = active_policy(unit.session).health, to_ms(unit.now)
    found: list[EvidenceId] = []
    for case in cases_of(unit, rows).values():
        if case.standing in OUT_OF_SERVICE:
            found += [each.id for each in condemning_of(case)]
        elif (move := decide(case, now_ms, policy)) is not None:
            found += move.evidence_ids
    return found
