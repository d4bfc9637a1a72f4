"""Draining a node: a cordon, and a stop request to every job that has GPUs there. Releasing the cordon undoes it.

Placement locks GPUs before it reads cordons; a drain locks the node's GPUs before it reads the running jobs. So either
the placement is seen and asked to leave, or it sees the cordon.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select

from control.attempts.attempts import live_attempt_of, lock_job, stop_attempt
from control.attempts.mapping import grace_ms, job_request
from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet import cordons
from control.fleet.gpu_locks import lock_gpus
from control.fleet.node_names import find_node
from control.policy.policies import active_policy
from control.policy.spent_budgets import require_budget
from muster.db.errors import ContentionError
from muster.db.models import Allocation, AllocationGpu, Attempt, Cordon, Gpu, Job
from muster.domain.errors import ConflictError, ValidationFailedError
from muster.domain.ids import JobId, NodeId
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission
from muster.domain.states import STOP_URGENCY, AttemptState, StopReason

DRAIN: Final = declare_action("node.drain")
REASON_CODE: Final = "drain"
"""Reason code of the cordon that stands as long as a node is drained."""


def drain(
    unit: UnitOfWork,
    text: str,
    *,
    reason: str,
    until: datetime | None = None,
    deadline_s: float | None = None,
    despite_budget: str | None = None,
) -> NodeId:
    """Cordon the node whose id or name is ``text``, and ask its running jobs to leave for maintenance.

    ``deadline_s``: how long programs may take to save and leave; by default, and at the least, what the policy gives an
    evacuated job. ``until``: the cordon's own end. ``despite_budget``: why it is drained
    although an error budget of a class that runs there is spent.

    Raises:
        NotFoundError: there is no such node.
        ValidationFailedError: an end that has passed, or less time than the policy gives.
        ConflictError: it is being drained already, or a spent error budget forbids it.
    """
    unit.principal.require(Permission.NODE_WRITE)
    node, policy = find_node(unit, text), active_policy(unit.session)
    if until is not None and until <= unit.now:
        raise ValidationFailedError.at("/until", "past", "must lie in the future")
    least_s = policy.evacuation.grace_s
    if deadline_s is not None and deadline_s < least_s:
        detail = f"must be at least {least_s:g}: the policy gives a job that long to save and leave"
        raise ValidationFailedError.at("/deadline_s", "less_than_policy", detail)
    jobs = lock_those_on(unit, node.id)
    _require_no_drain(unit, node.id)
    require_budget(unit, "drain", despite=despite_budget, node_id=node.id)
    cordon = cordons.stand(unit, REASON_CODE, reason, node_id=node.id, until=until)
    leaving = [job.id for job in jobs if ask_to_leave(unit, job, policy, deadline_s, reason)]
    told = {"cordon_id": cordon.id, "reason": reason, "jobs": leaving}
    unit.emit("node.draining", "node", node.id, payload=told)
    unit.audit("node.drain", "node", node.id, reason=reason, detail=told)
    return node.id


def lock_those_on(unit: UnitOfWork, node_id: NodeId) -> list[Job]:
    """Lock the jobs that have GPUs there, in id order, then the GPUs: no other job comes until the commit."""
    jobs = [lock_job(unit, job_id) for job_id in jobs_on(unit, node_id)]
    lock_gpus(unit, unit.session.scalars(select(Gpu.uuid).where(Gpu.node_id == node_id)).all())
    if set(jobs_on(unit, node_id)) - {job.id for job in jobs}:
        raise ContentionError("a job was placed on the node just now", retry_after_s=1)
    return jobs


def jobs_on(unit: UnitOfWork, node_id: NodeId) -> Sequence[JobId]:
    """Return the jobs with an attempt that has GPUs there, in id order."""
    query = (
        select(Attempt.job_id)
        .join(Allocation, Allocation.attempt_id == Attempt.id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(AllocationGpu.node_id == node_id, Attempt.state != AttemptState.ENDED)
        .distinct()
        .order_by(Attempt.job_id)
    )
    return unit.session.scalars(query).all()


def _require_no_drain(unit: UnitOfWork, node_id: NodeId) -> None:
    standing = cordons.those_that_stand(unit.now)
    query = select(Cordon.id).where(Cordon.node_id == node_id, Cordon.reason_code == REASON_CODE, standing)
    cordon_id = unit.session.scalar(query)
    if cordon_id is not None:
        raise ConflictError(
            f"{node_id} is being drained already, by {cordon_id}",
            suggestion="Check the node for jobs that are still there, or release that cordon first.",
            cordon_id=cordon_id,
        )


def ask_to_leave(
    unit: UnitOfWork,
    job: Job,
    policy: Policy,
    deadline_s: float | None,
    reason: str,
    *,
    ends_by: datetime | None = None,
) -> bool:
    """Ask a job to leave, and return whether it leaves: one that something as urgent stops is not asked again.

    ``ends_by``: nor is a job asked whose wall time ends by then. It does not count as leaving.
    """
    loaded = live_attempt_of(unit, job)
    if loaded is None:
        return False
    wall_deadline_at = loaded.attempt.wall_deadline_at
    if ends_by is not None and wall_deadline_at is not None and wall_deadline_at <= ends_by:
        return False
    stopped_by = loaded.attempt.stop_reason
    if stopped_by is None or STOP_URGENCY[stopped_by] < STOP_URGENCY[StopReason.MAINTENANCE]:
        own_s = grace_ms(job_request(job), Timers.of(policy)) / 1000
        grace = timedelta(seconds=deadline_s or max(policy.evacuation.grace_s, own_s))
        stop_attempt(unit, loaded, StopReason.MAINTENANCE, policy, grace=grace, detail=reason)
    return True
