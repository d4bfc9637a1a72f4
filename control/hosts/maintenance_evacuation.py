"""Maintenance evacuation: running jobs are asked to leave a node before planned work begins, in time.

Each round finds them from the windows' rows, so a restart neither loses a node nor asks a job twice.
"""

from datetime import timedelta
from typing import Final

from sqlalchemy import or_, select

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.hosts import drains
from control.policy.policies import active_policy
from muster.db.models import Allocation, AllocationGpu, Attempt, Cordon
from muster.domain.ids import NodeId
from muster.domain.principals import Permission, Principal
from muster.domain.states import STOP_URGENCY, AttemptState, StopReason

CLEAR: Final = declare_action("node.clear")
_LESS_URGENT: Final = [reason for reason in StopReason if STOP_URGENCY[reason] < STOP_URGENCY[StopReason.MAINTENANCE]]


def evacuate_for_maintenance_once(units: UnitOfWorkFactory, principal: Principal) -> list[NodeId]:
    """Ask jobs to leave on nodes that are due. Return the nodes with jobs that were not asked before."""
    now = units.clock()
    unasked = or_(Attempt.stop_reason.is_(None), Attempt.stop_reason.in_(_LESS_URGENT))
    stays = or_(Attempt.wall_deadline_at.is_(None), Attempt.wall_deadline_at > Cordon.starts_at)
    query = (
        select(Cordon.id, Cordon.node_id)
        .join(AllocationGpu, AllocationGpu.node_id == Cordon.node_id)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .where(
            Cordon.evacuate_at <= now,
            Cordon.released_at.is_(None),
            Cordon.until > now,
            Attempt.state != AttemptState.ENDED,
            unasked,
            stays,
        )
        .distinct()
        .order_by(Cordon.id)
    )
    with units.read() as session:
        due = session.execute(query).all()
    cleared: list[NodeId] = []
    for cordon_id, node_id in due:
        if retrying(lambda cordon_id=cordon_id: _clear(units, principal, cordon_id)):  # type: ignore[misc]  # bound at once
            cleared += [] if node_id is None else [node_id]
    return cleared


def _clear(units: UnitOfWorkFactory, principal: Principal, cordon_id: str) -> bool:
    with units.begin(principal, CLEAR) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        return ask_all_to_leave(unit, cordon_id)


def ask_all_to_leave(unit: UnitOfWork, cordon_id: str) -> bool:
    """Ask the jobs to leave that would still run when the window of this cordon begins. Return whether any was."""
    node_id = unit.session.scalar(select(Cordon.node_id).where(Cordon.id == cordon_id))
    if node_id is None:
        return False
    jobs = drains.lock_those_on(unit, node_id)
    cordon = unit.session.get_one(Cordon, cordon_id, populate_existing=True)
    if cordon.released_at is not None or cordon.starts_at is None:
        return False
    policy = active_policy(unit.session)
    deadline_s = max((cordon.starts_at - unit.now) / timedelta(seconds=1), policy.evacuation.grace_s)
    asked = [
        job.id
        for job in jobs
        if drains.ask_to_leave(unit, job, policy, deadline_s, cordon.reason, ends_by=cordon.starts_at)
    ]
    if not asked:
        return False
    told = {"cordon_id": cordon.id, "reason": cordon.reason, "jobs": asked, "deadline_s": deadline_s}
    unit.emit("node.maintenance_evacuation", "node", node_id, payload=told)
    return True
