"""Reclaim within a tier: a tenant under its guarantee takes back the GPUs that others use beyond theirs.

Two branches of the tree are compared where they part (their lowest common ancestor): the one stays within its guarantee
with the job, the other is over its own, and so is each tenant on the way down to the victim. So no tenant is over its
guarantee afterwards that was not before, and the claiming tenant is no victim: reclaim never only swaps which tenant is
over. Gangs are not divided, except elastic ones by whole hosts: a lender may fall under its guarantee by less than one
gang, never by a whole one. All of it is within one reclaimable tier (I7). Minimum run time and cap apply as for every
reclaim (I9).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from muster.domain.ids import AttemptId, TenantId
from muster.domain.policy.document import Policy
from scheduler.model import RunningAttempt
from scheduler.quota.tenancy import Holdings, Tenancy


class Lending:
    """The GPUs of each tenant beyond its guarantee, without the ones under notice.

    ``claims``: GPUs that a tenant will get by reclaim count as its own.
    """

    def __init__(
        self,
        tenancy: Tenancy,
        policy: Policy,
        attempts: Sequence[RunningAttempt],
        stays: Mapping[AttemptId, int] | None = None,
    ) -> None:
        """Record attempts.

        ``stays``: GPUs with which the job of a stopping attempt continues; without an entry, none.
        """
        self._policy, self._attempts = policy, attempts
        self._assigned, self._leaving = Holdings(tenancy), Holdings(tenancy)
        self._guarantees = {tier: tenancy.guarantees(tier) for tier in policy.tiers}
        for attempt in attempts:
            self._assigned.add(attempt.tenant_id, attempt.tier, len(attempt.gpus))
            if attempt.is_stopping:
                self.leaves(attempt, 0 if stays is None else stays.get(attempt.attempt_id, 0))

    def leaves(self, attempt: RunningAttempt, num_stay: int) -> None:
        """Record that the attempt leaves, except for ``num_stay`` GPUs, with which its job continues."""
        self._leaving.add(attempt.tenant_id, attempt.tier, len(attempt.gpus) - num_stay)

    def comes(self, tenant_id: TenantId, tier: str, num_gpus: int) -> None:
        """Count GPUs that the tenant got by a placement, or will get by reclaim, as its own."""
        self._assigned.add(tenant_id, tier, num_gpus)

    @property
    def num_changes(self) -> int:
        """How often GPUs came or left; it only grows."""
        return self._assigned.num_changes + self._leaving.num_changes

    def over(self, tenant_id: TenantId, tier: str) -> int:
        """Return the GPUs beyond its guarantee, negative if under it, without the ones under notice."""
        guaranteed = self._guarantees[tier].get(tenant_id, 0)
        return self._assigned.of(tenant_id, tier) - self._leaving.of(tenant_id, tier) - guaranteed

    def claim(self, tenant_id: TenantId, tier: str, num_gpus: int) -> "Claim | None":
        """Return what the tenant may take back for a job of so many GPUs; None: nothing."""
        rules = self._policy.tiers.get(tier)
        if rules is None or rules.notice_s is None or not self._guarantees[tier]:
            return None
        line = self._assigned.line(tenant_id)
        within = frozenset(above for above in line if self.over(above, tier) + num_gpus <= 0)
        return Claim(self, tier, line, within, self._attempts) if within else None

    def has_guarantee(self, tenant_id: TenantId, tier: str) -> bool:
        """Return whether it or one above it has a guarantee in a tier in which lent GPUs are taken back."""
        rules = self._policy.tiers.get(tier)
        is_taken_back = rules is not None and rules.notice_s is not None
        return is_taken_back and any(self._guarantees[tier].get(above, 0) for above in self._assigned.line(tenant_id))

    def way_down(self, line: Sequence[TenantId], tenant_id: TenantId) -> tuple[TenantId, ...]:
        """Return the tenants from this one up to where its line meets ``line``, without the common ones."""
        return tuple(above for above in self._assigned.line(tenant_id) if above not in line)

    def parent(self, tenant_id: TenantId) -> TenantId | None:
        return self._assigned.tenancy.member(tenant_id).parent


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim.

    ``line``: the claiming tenant and all above it; ``within``: the ones that stay within their guarantee.
    """

    lending: Lending
    tier: str
    line: tuple[TenantId, ...]
    within: frozenset[TenantId]
    attempts: Sequence[RunningAttempt]
    _candidates: dict[TenantId, tuple[TenantId, ...]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, tuple[TenantId, ...], frozenset[TenantId]]:
        """The key of all claims that reach the same attempts, while no GPUs come or leave."""
        return self.tier, self.line, self.within

    def reaches(self, attempt: RunningAttempt) -> bool:
        """Return whether the attempt runs on lent GPUs and may be reclaimed for the claim."""
        return attempt.tier == self.tier and bool(self._giving(attempt.tenant_id))

    def _giving(self, tenant_id: TenantId) -> tuple[TenantId, ...]:
        """Return the tenants that would give back with this one, itself first; empty if it lends nothing."""
        if tenant_id not in self._candidates:
            down = self.lending.way_down(self.line, tenant_id)
            is_due = bool(down) and self._branch(down[-1]) in self.within
            is_over = all(self.lending.over(above, self.tier) > 0 for above in down)
            self._candidates[tenant_id] = down if is_due and is_over else ()
        return self._candidates[tenant_id]

    def _branch(self, other: TenantId) -> TenantId | None:
        """Return the branch of the claiming tenant where the tree parts from the branch ``other``."""
        meets = self.lending.parent(other)
        if meets is None:
            return self.line[-1]
        below = self.line.index(meets) - 1
        return self.line[below] if below >= 0 else None

    def may_lose(self, victims: Sequence[int], given: Mapping[int, int] = MappingProxyType({})) -> bool:
        """Return whether each tenant that gives back stays over its guarantee until its last part is taken.

        ``given``: GPUs of victims that continue with fewer hosts, which give them host by host.
        """
        losses: dict[TenantId, list[int]] = defaultdict(list)
        for index in victims:
            attempt = self.attempts[index]
            if attempt.tier == self.tier:
                for tenant in self._giving(attempt.tenant_id):
                    losses[tenant] += _steps(attempt, given.get(index, len(attempt.gpus)))
        return all(sum(lost) - max(lost) < self.lending.over(tenant, self.tier) for tenant, lost in losses.items())


def _steps(attempt: RunningAttempt, num_gpus: int) -> list[int]:
    """Return the steps in which an attempt gives so many GPUs: whole hosts if it is elastic, else all in one."""
    if attempt.elastic is None or num_gpus == len(attempt.gpus):
        return [num_gpus]
    size = attempt.elastic.gpus_per_node
    return [size] * (num_gpus // size)
