"""A victim gets its notice by its hosts' heartbeats; until the first of them has it, the reclaim can be withdrawn.

Both happen under the lock of the victim's job, so a reclaim is either withdrawn or delivered, never both.
"""

from collections.abc import Collection
from typing import Final

from sqlalchemy import select

from control.attempts.attempts import LoadedAttempt, lock_attempt, stop_attempt
from control.attempts.reclaim_outcomes import move
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.placement import holds
from muster.db.models import Gpu, Job, Reclaim
from muster.domain.ids import AttemptId, GpuUuid, ReclaimId
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission, Principal
from muster.domain.states import ReclaimState, StopReason
from scheduler.reclaim.withdrawal import may_be_withdrawn

WITHDRAW: Final = declare_action("reclaim.withdraw")
_SCHEDULER: Final = "system:scheduler"


def notify_victims(unit: UnitOfWork, attempt_ids: Collection[AttemptId], policy: Policy) -> None:
    """Stop each of these attempts that has a notice of which no host knows yet: the answer brings the order."""
    if not attempt_ids:
        return
    query = select(Reclaim.victim_attempt_id).where(
        Reclaim.victim_attempt_id.in_(attempt_ids),
        Reclaim.state == ReclaimState.NOTIFIED,
        Reclaim.delivered_at.is_(None),
        Reclaim.hold_ended_at.is_(None),
    )
    for attempt_id in sorted(unit.session.scalars(query)):
        notify_victim(unit, lock_attempt(unit, attempt_id), policy)


def notify_victim(unit: UnitOfWork, loaded: LoadedAttempt, policy: Policy) -> None:
    """Stop the attempt from here on, at the latest at the deadline of its notice."""
    query = select(Reclaim).where(
        Reclaim.victim_attempt_id == loaded.attempt.id, Reclaim.state == ReclaimState.NOTIFIED
    )
    reclaim = unit.session.scalar(query.execution_options(populate_existing=True))
    if reclaim is None or reclaim.delivered_at is not None:
        return
    reclaim.delivered_at = unit.now
    detail = f"{reclaim.id}: {reclaim.reason}"
    if reclaim.keeps:
        _hold_what_it_keeps(unit, loaded.job, reclaim)
        detail = f"{detail}; it continues with {len(reclaim.keeps)} of its GPUs"
    stop_attempt(
        unit,
        loaded,
        StopReason.RECLAIM,
        policy,
        grace=reclaim.deadline_at - unit.now,
        requested_by=_SCHEDULER,
        detail=detail,
    )


def _hold_what_it_keeps(unit: UnitOfWork, job: Job, reclaim: Reclaim) -> None:
    """Hold an elastic victim's kept GPUs for it: no other job takes them while it changes its size."""
    keeps = sorted(GpuUuid(uuid) for uuid in reclaim.keeps or ())
    unit.session.scalars(select(Gpu.uuid).where(Gpu.uuid.in_(keeps)).order_by(Gpu.uuid).with_for_update(key_share=True))
    on_hold = set(holds.hold_gpus_of_others(unit, keeps))
    holds.hold(unit, job, [uuid for uuid in keeps if uuid not in on_hold])


def withdraw_idle(units: UnitOfWorkFactory, principal: Principal) -> list[ReclaimId]:
    """Withdraw notices whose beneficiary waits no more and that no victim has received.

    Other victims leave all the same.
    """
    with units.read() as session:
        query = select(Reclaim.id, Reclaim.victim_attempt_id).where(
            Reclaim.state == ReclaimState.NOTIFIED, Reclaim.delivered_at.is_(None), Reclaim.hold_ended_at.is_not(None)
        )
        idle = session.execute(query.order_by(Reclaim.id)).all()
    return [
        reclaim_id
        for reclaim_id, attempt_id in idle
        if retrying(lambda victim=attempt_id: _withdraw(units, principal, victim))  # type: ignore[misc]  # bound at once
    ]


def _withdraw(units: UnitOfWorkFactory, principal: Principal, attempt_id: AttemptId) -> bool:
    with units.begin(principal, WITHDRAW) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        lock_attempt(unit, attempt_id)
        query = select(Reclaim).where(
            Reclaim.victim_attempt_id == attempt_id,
            Reclaim.state == ReclaimState.NOTIFIED,
            Reclaim.hold_ended_at.is_not(None),
        )
        reclaim = unit.session.scalar(query.execution_options(populate_existing=True))
        if reclaim is None or not may_be_withdrawn(reclaim.state, is_delivered=reclaim.delivered_at is not None):
            return False
        move(unit, reclaim, ReclaimState.WITHDRAWN, reclaim.hold_ended_why or "")
        return True
