"""Tenants as a tree, their quotas in a tier, and their GPUs: each with all tenants below it.

A tenant under another is a team of a department, up to ``MOST_LEVELS`` levels deep. The GPUs of a team count for its
department, and so on upwards, so that a limit above binds every tenant below it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from muster.domain.ids import TenantId

if TYPE_CHECKING:
    from scheduler.quota.firm_guarantees import FirmGuarantees

MOST_LEVELS: Final = 8
"""A tenant has fewer ancestors than this."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of a tenant in one tier, in GPUs. ``borrowable``: beyond ``guaranteed``. None: no limit."""

    guaranteed: int = 0
    borrowable: int | None = None
    ceiling: int | None = None

    @property
    def most(self) -> int | None:
        """The most GPUs that the tenant may have; None: no limit."""
        borrowed = None if self.borrowable is None else self.guaranteed + self.borrowable
        return min((limit for limit in (borrowed, self.ceiling) if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class Member:
    """A tenant's place in the tree. ``weight``: of its share, against the other tenants under the same one."""

    parent: TenantId | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The tree of tenants.

    ``members``: a tenant that is missing has no parent and weight 1. ``used``: past GPUs by tenant and tier, where
    older use counts less and less.
    """

    members: Mapping[TenantId, Member] = field(default_factory=dict)
    quotas: Mapping[tuple[TenantId, str], Quota] = field(default_factory=dict)
    used: Mapping[tuple[TenantId, str], float] = field(default_factory=dict)

    @classmethod
    def of_ceilings(cls, ceilings: Mapping[tuple[TenantId, str], int]) -> Self:
        """Return tenants without a tree, with ceilings alone."""
        return cls(quotas={key: Quota(ceiling=ceiling) for key, ceiling in ceilings.items()})

    def line(self, tenant_id: TenantId) -> tuple[TenantId, ...]:
        """Return the tenant and all above it, from below."""
        line = [tenant_id]
        while len(line) < MOST_LEVELS:
            parent = self.member(line[-1]).parent
            if parent is None:
                break
            line.append(parent)
        return tuple(line)

    def member(self, tenant_id: TenantId) -> Member:
        return self.members.get(tenant_id, _ALONE)

    def guarantees(self, tier: str) -> dict[TenantId, int]:
        """Return the guarantees in the tier, by tenant; a department has at least the sum of its teams'."""
        if not self.quotas:
            return {}
        own = {tenant: quota.guaranteed for (tenant, name), quota in self.quotas.items() if name == tier}
        below: dict[TenantId, list[TenantId]] = defaultdict(list)
        concerned = {above for tenant, number in own.items() if number for above in self.line(tenant)}
        for tenant in concerned:
            parent = self.member(tenant).parent
            if parent is not None:
                below[parent].append(tenant)

        def guaranteed(tenant: TenantId) -> int:
            return max(own.get(tenant, 0), sum(guaranteed(team) for team in below[tenant]))

        return {tenant: guaranteed(tenant) for tenant in concerned}

    def all_guaranteed(self, tier: str) -> int:
        """Return the GPUs that are guaranteed in the tier to all tenants together."""
        return sum(number for tenant, number in self.guarantees(tier).items() if self.member(tenant).parent is None)


_ALONE: Final = Member()


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on ``tenant_id`` and all below it: ``assigned`` of ``most`` GPUs.

    ``is_ceiling``: the limit is a ceiling, else what may be borrowed. ``kept``: for pending jobs, in addition to
    ``assigned``. ``is_firm``: more is guaranteed to others, and not lent to the job's tier.
    """

    tenant_id: TenantId
    assigned: int
    most: int
    is_ceiling: bool
    kept: int = 0
    is_firm: bool = False

    @property
    def left(self) -> int:
        """The GPUs that the limit leaves; negative if it is exceeded already."""
        return self.most - self.assigned - self.kept

    def leaving(self, left: int) -> "Limit":
        """Return the limit with so much more kept that it leaves no more than ``left``."""
        return replace(self, kept=self.kept + self.left - max(min(left, self.left), min(self.left, 0)))


class Holdings:
    """GPUs by tenant and tier, which count for all tenants above too. ``num_changes`` only grows.

    GPUs that are kept for pending jobs are not in use yet, but no other job may have them of a limit. ``firm``: the
    account of firm guarantees, which counts both; None if there are none, or a commit asks.
    """

    __slots__ = ("_gpus", "_kept", "_lines", "firm", "num_changes", "tenancy")

    def __init__(self, tenancy: Tenancy, firm: "FirmGuarantees | None" = None) -> None:
        self.tenancy, self.firm, self.num_changes = tenancy, firm, 0
        self._gpus: dict[tuple[TenantId, str], int] = {}
        self._kept: dict[tuple[TenantId, str], int] = {}
        self._lines: dict[TenantId, tuple[TenantId, ...]] = {}

    def copy(self) -> "Holdings":
        other = Holdings(self.tenancy, None if self.firm is None else self.firm.copy())
        other._gpus, other._kept, other._lines = self._gpus.copy(), self._kept.copy(), self._lines
        return other

    def line(self, tenant_id: TenantId) -> tuple[TenantId, ...]:
        if tenant_id not in self._lines:
            self._lines[tenant_id] = self.tenancy.line(tenant_id)
        return self._lines[tenant_id]

    def add(self, tenant_id: TenantId, tier: str, num_gpus: int) -> None:
        self.num_changes += 1
        for above in self.line(tenant_id):
            self._gpus[above, tier] = self._gpus.get((above, tier), 0) + num_gpus
        if self.firm is not None:
            self.firm.add(tenant_id, tier, num_gpus)

    def keep(self, tenant_id: TenantId, tier: str, num_gpus: int) -> None:
        """Keep GPUs for a pending job, counted as by ``add``; a negative number ends it."""
        self.num_changes += 1
        for above in self.line(tenant_id):
            self._kept[above, tier] = self._kept.get((above, tier), 0) + num_gpus
        if self.firm is not None:
            self.firm.add(tenant_id, tier, num_gpus)

    def set(self, tenant_id: TenantId, tier: str, num_gpus: int, num_kept: int = 0) -> None:
        """Set the GPUs of one tenant, known with all below it, and the ones kept for their pending jobs."""
        self.num_changes += 1
        self._gpus[tenant_id, tier], self._kept[tenant_id, tier] = num_gpus, num_kept

    def of(self, tenant_id: TenantId, tier: str) -> int:
        """Return the GPUs of the tenant with all below it."""
        return self._gpus.get((tenant_id, tier), 0)

    def limit(self, tenant_id: TenantId, tier: str) -> Limit | None:
        """Return the limit that leaves least (I6); the lowest of equal ones."""
        if not self.tenancy.quotas:
            return None
        return min(self.limits(tenant_id, tier), key=lambda limit: limit.left, default=None)

    def limit_now(self, tenant_id: TenantId, tier: str) -> Limit | None:
        """Return the limit that leaves least for a start now: of the quotas, or what others' firm guarantees leave."""
        limit = self.limit(tenant_id, tier)
        room = None if self.firm is None else self.firm.room(tenant_id, tier)
        if room is None or (limit is not None and limit.left <= room):
            return limit
        assigned = self.of(tenant_id, tier)
        return Limit(tenant_id, assigned, assigned + room, is_ceiling=False, is_firm=True)

    def limits(self, tenant_id: TenantId, tier: str) -> list[Limit]:
        """Return the limits of the tenant and all above it, from below."""
        return [limit for above in self.line(tenant_id) if (limit := self._limit_of(above, tier)) is not None]

    def _limit_of(self, tenant_id: TenantId, tier: str) -> Limit | None:
        quota = self.tenancy.quotas.get((tenant_id, tier))
        if quota is None or quota.most is None:
            return None
        kept = self._kept.get((tenant_id, tier), 0)
        return Limit(tenant_id, self.of(tenant_id, tier), quota.most, quota.most == quota.ceiling, kept)

    def room(self, tenant_id: TenantId, tier: str) -> int | None:
        """Return how many more GPUs the tenant may have, given its own and the kept ones; None: no limit."""
        limit = self.limit(tenant_id, tier)
        return None if limit is None else max(limit.left, 0)


def refusal_of_parent(parents: Mapping[TenantId, TenantId | None], tenant_id: TenantId, parent: TenantId) -> str | None:
    """Return why ``tenant_id`` cannot come under ``parent`` in this tree, or None. ``parents``: of every tenant."""
    above = _above(parents, parent)
    if tenant_id in above:
        return "it is the tenant itself, or below it: name a parent outside its own teams"
    depth = len(above) + _depth_below(parents, tenant_id)
    if depth > MOST_LEVELS:
        return f"the tree would be {depth} levels deep; {MOST_LEVELS} is the most"
    return None


def _above(parents: Mapping[TenantId, TenantId | None], tenant_id: TenantId) -> Sequence[TenantId]:
    """Return the tenant and all above it."""
    line: list[TenantId] = []
    at: TenantId | None = tenant_id
    while at is not None and at not in line:
        line.append(at)
        at = parents.get(at)
    return line


def _depth_below(parents: Mapping[TenantId, TenantId | None], tenant_id: TenantId) -> int:
    """Return the levels from the tenant down, with its own."""
    lines = (_above(parents, other) for other in parents)
    return max((line.index(tenant_id) + 1 for line in lines if tenant_id in line), default=1)
