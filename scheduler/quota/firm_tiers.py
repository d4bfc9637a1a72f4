"""The tiers in which guarantees are firm, and the GPUs from which a fleet meets them (``quota.firm_guarantees``)."""

from collections.abc import Iterable
from itertools import combinations

import numpy as np

from muster.domain.ids import TenantId
from muster.domain.policy.document import Policy
from scheduler.fleet.topology import Flags, FleetState
from scheduler.model import RunningAttempt
from scheduler.quota.firm_guarantees import FirmGuarantees, FirmPool
from scheduler.quota.tenancy import Tenancy


def is_firm(policy: Policy, tier: str) -> bool:
    """Return whether no rule reclaims from the tier, so that its guarantees cannot be taken back within it."""
    rules = policy.tiers.get(tier)
    return rules is not None and rules.notice_s is None


def may_reclaim(policy: Policy, tier: str, other: str) -> bool:
    """Return whether jobs of ``tier`` reclaim from jobs of ``other``; also if they have to await its minimum run."""
    rules, lent = policy.tiers.get(tier), policy.tiers.get(other)
    if rules is None or lent is None or lent.notice_s is None:
        return False
    return lent.priority < rules.priority and policy.reclaim.cap_fraction > 0


def firm_guarantees(
    state: FleetState, policy: Policy, tenancy: Tenancy, running: Iterable[RunningAttempt]
) -> FirmGuarantees | None:
    """Return the account of the fleet without any job: callers count the ``running`` ones. None: no guarantee is firm.

    GPUs on which an attempt runs and that no tier of a pool admits any more are none of the pool's. Counting the
    attempt takes them off all the same, so they are added here.
    """
    sets = _sets(policy, tenancy)
    attempts, pools = [(one, state.layout.gpu_indices(one.gpus)) for one in running] if sets else [], []
    for tiers in sets:
        admitted: Flags = np.logical_or.reduce([state.tier(tier).admitted for tier in sorted(tiers)])
        reclaims = _reclaims(policy, tiers)
        num_outside = sum(
            len(one.gpus) - int(np.count_nonzero(admitted[gpus])) for one, gpus in attempts if one.tier not in reclaims
        )
        pools.append(FirmPool(tiers, reclaims, admitted, int(np.count_nonzero(admitted)) + num_outside))
    return FirmGuarantees(tenancy, pools) if pools else None


def most_in_idle_fleet(policy: Policy, tenancy: Tenancy, tenant: TenantId, tier: str, num_gpus: int) -> int | None:
    """Return the most GPUs that others' firm guarantees leave to the tenant, of so many that every tier admits."""
    gpus: Flags = np.ones(num_gpus, dtype=np.bool_)
    pools = [FirmPool(tiers, _reclaims(policy, tiers), gpus, num_gpus) for tiers in _sets(policy, tenancy)]
    return FirmGuarantees(tenancy, pools).room(tenant, tier) if pools else None


def _reclaims(policy: Policy, tiers: frozenset[str]) -> frozenset[str]:
    return frozenset(other for other in policy.tiers if any(may_reclaim(policy, one, other) for one in tiers))


def _sets(policy: Policy, tenancy: Tenancy) -> list[frozenset[str]]:
    """Return the tiers with firm guarantees: each alone, each pair, and all together."""
    tiers = {tier for (_, tier), quota in tenancy.quotas.items() if quota.guaranteed and is_firm(policy, tier)}
    few = (frozenset(some) for number in (1, 2) for some in combinations(sorted(tiers), number))
    return list(dict.fromkeys((*few, frozenset(tiers)))) if tiers else []
