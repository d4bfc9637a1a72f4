"""Guarantees that a fleet has to meet together, before and after a change of quotas, of the tree or of the policy."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.orm import Session

from muster.db.queries.tenants import fleet_gpus
from muster.domain.policy.document import Policy
from scheduler.quota.firm_tiers import is_firm
from scheduler.quota.tenancy import Tenancy


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides which guarantees count together: the tiers of the policy, and the tree of tenants."""

    policy: Policy
    tree: Tenancy


@dataclass(frozen=True, slots=True)
class Excess:
    """Guarantees of ``tiers`` that together are more than the fleet has."""

    tiers: tuple[str, ...]
    needed: int
    num_gpus: int

    @property
    def words(self) -> str:
        return (
            f"{self.needed} GPUs would be guaranteed in {', '.join(self.tiers)} together, and the fleet has "
            f"{self.num_gpus}"
        )

    @property
    def beyond(self) -> int:
        return self.needed - self.num_gpus


def new_excess(session: Session, before: Rules, after: Rules) -> Excess | None:
    """Return the guarantees beyond the fleet that the change from ``before`` to ``after`` causes or raises, or None.

    Guarantees in tiers that no rule reclaims are met side by side, so they count together. A change that does not raise
    them is always accepted: the fleet may have become smaller.
    """
    for tiers in _groups(after.policy):
        needed = _needed(after.tree, tiers)
        if needed and needed > _needed(before.tree, _counted_before(before.policy, tiers)):
            num_gpus = fleet_gpus(session)
            if needed > num_gpus:
                return Excess(tiers, needed, num_gpus)
    return None


def _groups(policy: Policy) -> Iterator[tuple[str, ...]]:
    """Yield the tiers of which guarantees count together."""
    yield tuple(tier for tier in sorted(policy.tiers) if is_firm(policy, tier))
    for tier in sorted(policy.tiers):
        if not is_firm(policy, tier):
            yield (tier,)


def _counted_before(policy: Policy, tiers: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of the tiers counted together already; a single tier counts by itself in any case."""
    if len(tiers) == 1:
        return tuple(tier for tier in tiers if tier in policy.tiers)
    return tuple(tier for tier in tiers if is_firm(policy, tier))


def _needed(tree: Tenancy, tiers: tuple[str, ...]) -> int:
    return sum(tree.all_guaranteed(tier) for tier in tiers)
