"""Making a candidate the active policy, for persons."""

from collections.abc import Sequence
from dataclasses import dataclass

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from control.core.versions import VersionRecord, active_version
from control.policy.policies import active_policy, hold_policies, store_policy
from control.policy.read import PolicyView, obstacles_of
from control.policy.spent_budgets import require_budget
from muster.db.models import PolicyVersion
from muster.db.queries.tenants import lock_guarantees
from muster.domain.errors import ConflictError, FieldFault, PreconditionFailedError
from muster.domain.policy.differences import Difference, differences
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission


@dataclass(frozen=True, slots=True)
class Activated:
    view: PolicyView
    differences: Sequence[Difference]


def activate(
    unit: UnitOfWork,
    policy: Policy,
    *,
    reason: str,
    expected_version: int | None = None,
    despite_budget: str | None = None,
) -> Activated:
    """Make ``policy`` the active one, for every decision from the commit on.

    ``despite_budget``: why, although an error budget is spent.

    Raises:
        PreconditionFailedError: another version than ``expected_version`` is active.
        ConflictError: it lacks a tier in which jobs wait or run, or makes more guarantees firm than the fleet has;
            or a spent error budget forbids it.
    """
    unit.principal.require(Permission.POLICY_WRITE)
    if not unit.dry_run:
        lock_guarantees(unit.session)
    hold_policies(unit.session)
    row = active_version(unit.session, PolicyVersion)
    version = None if row is None else row.version
    if expected_version is not None and expected_version != version:
        raise PreconditionFailedError(current_version=version)
    obstacles = obstacles_of(unit, policy)
    if obstacles:
        words = "; ".join(fault.detail for fault in obstacles)
        raise ConflictError(words, suggestion=_suggestion(obstacles), faults=tuple(obstacles))
    require_budget(unit, "policy", despite=despite_budget)
    found = differences(active_policy(unit.session), policy)
    stored = unit.session.get_one(PolicyVersion, store_policy(unit, policy, reason=reason))
    return Activated(PolicyView(record_of(stored, VersionRecord), policy), found)


def _suggestion(obstacles: Sequence[FieldFault]) -> str:
    if any(fault.code == "tier_in_use" for fault in obstacles):
        return "Keep the tier until its jobs have ended."
    return "Lower guarantees with `muster quota set`, or keep the tier reclaimable."
