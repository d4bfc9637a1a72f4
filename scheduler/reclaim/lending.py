"""Lending taken back: who of a tier has more than its guarantee gives way to who has less.

Two branches of the tree are held against each other where they part (their lowest common ancestor): the one stays
within its guarantee with the job, the other is over its own, and so is each tenant on the way down to the victim. So
nobody is over after it who was not before, and who took back is no victim: reclaim never only swaps who is over.
Gangs are not divided, but elastic ones by whole hosts: a lender may fall under its guarantee by less than one gang,
never by a whole one. All of it is within one reclaimable tier (I7); minimum run and cap are asked as for every reclaim
(I9).
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
    """What each tenant holds beyond what it is guaranteed, less what it has been told to give back.

    ``claims``: what is on its way to a tenant by reclaim counts as its own.
    """

    def __init__(
        self,
        tenancy: Tenancy,
        policy: Policy,
        attempts: Sequence[RunningAttempt],
        stays: Mapping[AttemptId, int] | None = None,
    ) -> None:
        """``stays``: with how many GPUs the job of a stopping attempt goes on; without an entry with none."""
        self._policy, self._attempts = policy, attempts
        self._held, self._leaving = Holdings(tenancy), Holdings(tenancy)
        self._guarantees = {tier: tenancy.guarantees(tier) for tier in policy.tiers}
        for attempt in attempts:
            self._held.add(attempt.tenant_id, attempt.tier, len(attempt.gpus))
            if attempt.is_stopping:
                self.leaves(attempt, 0 if stays is None else stays.get(attempt.attempt_id, 0))

    def leaves(self, attempt: RunningAttempt, num_stay: int) -> None:
        """But for ``num_stay`` GPUs, with which its job goes on."""
        self._leaving.add(attempt.tenant_id, attempt.tier, len(attempt.gpus) - num_stay)

    def comes(self, tenant_id: TenantId, tier: str, num_gpus: int) -> None:
        """Placed, or on its way: the tenant is nearer to its guarantee by so much."""
        self._held.add(tenant_id, tier, num_gpus)

    def over(self, tenant_id: TenantId, tier: str) -> int:
        """GPUs beyond its guarantee, negative under it, once those that are told to leave have left."""
        guaranteed = self._guarantees[tier].get(tenant_id, 0)
        return self._held.of(tenant_id, tier) - self._leaving.of(tenant_id, tier) - guaranteed

    def claim(self, tenant_id: TenantId, tier: str, num_gpus: int) -> "Claim | None":
        """What the tenant may take back for a job of so many GPUs; None: nothing."""
        rules = self._policy.tiers.get(tier)
        if rules is None or rules.notice_s is None or not self._guarantees[tier]:
            return None
        line = self._held.line(tenant_id)
        within = frozenset(above for above in line if self.over(above, tier) + num_gpus <= 0)
        return Claim(self, tier, line, within, self._attempts) if within else None

    def has_guarantee(self, tenant_id: TenantId, tier: str) -> bool:
        """It or one above it, in a tier in which what was lent is taken back."""
        rules = self._policy.tiers.get(tier)
        is_taken_back = rules is not None and rules.notice_s is not None
        return is_taken_back and any(self._guarantees[tier].get(above, 0) for above in self._held.line(tenant_id))

    def way_down(self, line: Sequence[TenantId], tenant_id: TenantId) -> tuple[TenantId, ...]:
        """From the tenant up to where its line meets ``line``, which is not among them."""
        return tuple(above for above in self._held.line(tenant_id) if above not in line)

    def parent(self, tenant_id: TenantId) -> TenantId | None:
        return self._held.tenancy.member(tenant_id).parent


@dataclass(frozen=True, slots=True)
class Claim:
    """``line``: the claiming tenant and those above it; ``within``: those of them that stay within their guarantee."""

    lending: Lending
    tier: str
    line: tuple[TenantId, ...]
    within: frozenset[TenantId]
    attempts: Sequence[RunningAttempt]
    _givers: dict[TenantId, tuple[TenantId, ...]] = field(default_factory=dict)

    def reaches(self, attempt: RunningAttempt) -> bool:
        """Whether the attempt runs on what was lent, and may be taken for it."""
        return attempt.tier == self.tier and bool(self._giving(attempt.tenant_id))

    def _giving(self, tenant_id: TenantId) -> tuple[TenantId, ...]:
        """Those who would give back with the tenant, itself first; none where it is no lender of the claim's."""
        if tenant_id not in self._givers:
            down = self.lending.way_down(self.line, tenant_id)
            is_due = bool(down) and self._branch(down[-1]) in self.within
            is_over = all(self.lending.over(above, self.tier) > 0 for above in down)
            self._givers[tenant_id] = down if is_due and is_over else ()
        return self._givers[tenant_id]

    def _branch(self, other: TenantId) -> TenantId | None:
        """The claiming side of where the tree parts, against the branch ``other``."""
        meets = self.lending.parent(other)
        if meets is None:
            return self.line[-1]
        below = self.line.index(meets) - 1
        return self.line[below] if below >= 0 else None

    def may_lose(self, victims: Sequence[int], given: Mapping[int, int] = MappingProxyType({})) -> bool:
        """Whether each of those who would give back is over its guarantee until the last of them is taken.

        ``given``: GPUs of victims that go on smaller, which give them host by host.
        """
        losses: dict[TenantId, list[int]] = defaultdict(list)
        for index in victims:
            attempt = self.attempts[index]
            if attempt.tier == self.tier:
                for tenant in self._giving(attempt.tenant_id):
                    losses[tenant] += _steps(attempt, given.get(index, len(attempt.gpus)))
        return all(sum(lost) - max(lost) < self.lending.over(tenant, self.tier) for tenant, lost in losses.items())


def _steps(attempt: RunningAttempt, num_gpus: int) -> list[int]:
    """In which an attempt gives so many GPUs: whole hosts of what is elastic, else all in one."""
    if attempt.elastic is None or num_gpus == len(attempt.gpus):
        return [num_gpus]
    size = attempt.elastic.gpus_per_node
    return [size] * (num_gpus // size)
