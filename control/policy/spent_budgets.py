"""What a spent error budget forbids: acts of persons that may cost its class more events.

Where the policy only says it (``objectives.forbids`` is false), the act takes place, and an event and an audit entry
name the budget. The same holds where a person gives a reason to do so despite it.
"""

from collections.abc import Collection
from typing import Final

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork
from control.policy.policies import active_policy
from muster.db.models import Allocation, AllocationGpu, Attempt, Job, ObjectiveState
from muster.domain.errors import ConflictError
from muster.domain.ids import NodeId
from muster.domain.policy.objectives import SpentAct
from muster.domain.states import AttemptState

_ACT_WORDS: Final = {
    "drain": "a drain of this node",
    "maintenance": "maintenance of this node",
    "policy": "another policy",
}


def require_budget(unit: UnitOfWork, act: SpentAct, *, despite: str | None, node_id: NodeId | None = None) -> None:
    """Require that no spent budget forbids the act. ``node_id``: where it takes place; None: everywhere.

    Raises:
        ConflictError: one does, and no reason is given to act despite it.
    """
    policy = active_policy(unit.session).objectives
    forbidding = {name for name, one in policy.classes.items() if act in one.forbids_when_spent}
    if not forbidding:
        return
    query = select(ObjectiveState.objective, ObjectiveState.job_class).where(ObjectiveState.is_spent)
    rows = unit.session.execute(
        query.where(ObjectiveState.job_class.in_(forbidding)).order_by(ObjectiveState.objective)
    )
    spent = [(str(objective), str(job_class)) for objective, job_class in rows]
    if spent and node_id is not None:
        present = {policy.class_of(named) for named in _classes_on(unit, node_id)}
        spent = [(objective, job_class) for objective, job_class in spent if job_class in present]
    if not spent:
        return
    names = [objective for objective, _ in spent]
    if policy.forbids and despite is None:
        raise ConflictError(
            f"the error budget of {', '.join(names)} is spent, which forbids {_ACT_WORDS[act]}",
            suggestion="Wait until it recovers (`muster objectives`), or say why it is to be done despite that"
            " (`--despite-budget REASON`, `despite_budget`).",
            objectives=names,
        )
    told = {"act": act, "objectives": names, "is_forbidden": policy.forbids, "reason": despite, "node_id": node_id}
    for name in names:
        unit.emit("objective.act_despite_spent", "objective", name, payload=told)
    unit.audit("objective.act_despite_spent", "objective", names[0], reason=despite, detail=told)


def _classes_on(unit: UnitOfWork, node_id: NodeId) -> Collection[str | None]:
    """Return the classes of the jobs with an attempt that has GPUs there."""
    query = (
        select(Job.job_class)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Allocation, Allocation.attempt_id == Attempt.id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(AllocationGpu.node_id == node_id, Attempt.state != AttemptState.ENDED)
        .distinct()
    )
    return unit.session.scalars(query).all()
