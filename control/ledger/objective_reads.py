"""Objectives as operators read them: their targets, and the states of their error budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import select

from control.core.records import records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.policy.policies import active_policy
from muster.db.models import ObjectiveState
from muster.domain.policy.objectives import BurnRate, JobClass, Objective
from muster.domain.principals import Permission

_STATES_BY_URGENCY: Final = ("page", "ticket", "ok")
READ: Final = declare_action("objectives.read")


class ObjectiveStateRecord(msgspec.Struct, frozen=True):
    """The state of an error budget. Its columns' meanings are in ``muster.db.models.objectives``."""

    objective: str
    basis: str
    counted_from: datetime
    counted_until: datetime
    state: str
    state_since: datetime
    burning: dict[str, Any]
    rates: dict[str, Any]
    num_good: int
    num_bad: int
    left_fraction: float
    is_spent: bool


@dataclass(frozen=True, slots=True)
class ObjectiveView:
    """An objective of the policy. ``state``: None until its events are counted.

    ``is_enforced``: whether its class refuses what it forbids while the budget is spent.
    """

    name: str
    objective: Objective
    job_class: JobClass
    state: ObjectiveStateRecord | None
    burn_rates: Mapping[str, BurnRate]
    is_enforced: bool


def list_objectives(unit: UnitOfWork) -> Sequence[ObjectiveView]:
    """Return the objectives of the active policy: burning ones first, then the least rest."""
    unit.principal.require(Permission.POLICY_READ)
    policy = active_policy(unit.session).objectives
    rows = records_of(unit.session.scalars(select(ObjectiveState)), ObjectiveStateRecord)
    states = {row.objective: row for row in rows}
    found = [
        ObjectiveView(name, each, policy.classes[each.job_class], states.get(name), policy.burn_rates, policy.forbids)
        for name, each in policy.targets.items()
    ]
    return sorted(found, key=_urgency)


def _urgency(view: ObjectiveView) -> tuple[int, float, str]:
    if view.state is None:
        return len(_STATES_BY_URGENCY), 1.0, view.name
    return _STATES_BY_URGENCY.index(view.state.state), view.state.left_fraction, view.name
