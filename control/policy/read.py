"""The policy as persons see it: the active one and its start, every version, and activating a candidate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from pydantic import ValidationError
from sqlalchemy import func, select

from control.core.paging import ALWAYS, Part, Span
from control.core.records import record_of
from control.core.tenant_tree import tenancy
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.versions import VersionRecord, active_version, orders_of, versions_in
from control.policy.guarantees import Rules, new_excess
from control.policy.policies import active_policy
from muster.db.models import Job, PolicyVersion
from muster.domain.errors import FieldFault, NotFoundError
from muster.domain.policy.differences import Difference, differences
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.principals import Permission
from muster.domain.states import TERMINAL_JOB_STATES
from muster.domain.strict import STORED
from scheduler.quota.firm_tiers import is_firm

READ: Final = declare_action("policy.read")
SORTS: Final = orders_of(PolicyVersion)


class PolicyRecord(msgspec.Struct, frozen=True):
    """A version of the policy. ``document``: its JSON, unparsed."""

    version: int
    document: msgspec.Raw


@dataclass(frozen=True, slots=True)
class PolicyView:
    """One version. ``policy``: its document with every default filled in, or None where it no longer validates.

    ``row`` is None for the built-in defaults, which are in force until a first version is stored.
    """

    row: VersionRecord | None
    policy: Policy | None

    @property
    def version(self) -> int | None:
        return None if self.row is None else self.row.version


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate compared with the active policy. ``obstacles``: why it cannot become active now."""

    active_version: int | None
    differences: Sequence[Difference]
    obstacles: Sequence[FieldFault]


def active(unit: UnitOfWork) -> PolicyView:
    unit.principal.require(Permission.POLICY_READ)
    row = active_version(unit.session, PolicyVersion)
    return PolicyView(None, DEFAULT_POLICY) if row is None else _view(row)


def list_versions(unit: UnitOfWork, part: Part, *, span: Span = ALWAYS) -> Sequence[VersionRecord]:
    """Return the versions of ``span``, the newest first unless ``part`` says otherwise."""
    unit.principal.require(Permission.POLICY_READ)
    return versions_in(unit, PolicyVersion, part, span)


def get(unit: UnitOfWork, version: int) -> PolicyView:
    """Return the version. Raises ``NotFoundError`` where there is none."""
    unit.principal.require(Permission.POLICY_READ)
    row = unit.session.get(PolicyVersion, version)
    if row is None:
        raise NotFoundError("there is no such version of the policy")
    return _view(row)


def compare(unit: UnitOfWork, candidate: Policy) -> Comparison:
    """Return what would change if ``candidate`` were the active policy."""
    unit.principal.require(Permission.POLICY_READ)
    row = active_version(unit.session, PolicyVersion)
    found = differences(active_policy(unit.session), candidate)
    return Comparison(None if row is None else row.version, found, obstacles_of(unit, candidate))


def _view(row: PolicyVersion) -> PolicyView:
    stored = record_of(row, VersionRecord)
    try:
        return PolicyView(stored, Policy.model_validate(stored.document, strict=False, context=STORED))
    except ValidationError:
        return PolicyView(stored, None)


def obstacles_of(unit: UnitOfWork, policy: Policy) -> list[FieldFault]:
    """Return why the policy cannot become active now: jobs without a tier, or guarantees beyond the fleet."""
    return [*_tiers_in_use(unit, policy), *_guarantees_beyond(unit, policy)]


def _tiers_in_use(unit: UnitOfWork, policy: Policy) -> list[FieldFault]:
    """Return tiers that the policy lacks, and in which jobs have not ended: no plan could place or reclaim these."""
    query = (
        select(Job.tier, func.count())
        .where(Job.state.not_in(TERMINAL_JOB_STATES), Job.tier.not_in(policy.tiers))
        .group_by(Job.tier)
        .order_by(Job.tier)
    )
    return [
        FieldFault(f"/tiers/{tier}", "tier_in_use", f"{count} jobs of the tier {tier} have not ended")
        for tier, count in unit.session.execute(query)
    ]


def _guarantees_beyond(unit: UnitOfWork, policy: Policy) -> list[FieldFault]:
    """Return the tier whose guarantees the fleet cannot meet, once no rule of the policy reclaims from it."""
    before, tree = active_policy(unit.session), tenancy(unit.session)
    excess = new_excess(unit.session, Rules(before, tree), Rules(policy, tree))
    if excess is None:
        return []
    changed = [tier for tier in excess.tiers if tier not in before.tiers or not is_firm(before, tier)]
    detail = (
        f"no rule would reclaim from {changed[0]}, so its guarantees count with the other firm ones: {excess.words}; "
        f"lower guarantees by {excess.beyond} GPUs first, or give {changed[0]} a `notice_s`"
    )
    return [FieldFault(f"/tiers/{changed[0]}/notice_s", "beyond_fleet", detail)]
