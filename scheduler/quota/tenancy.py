"""Tenants as a tree, what each may hold in a tier, and what each holds: with all that are below it.

A tenant under another is a team of a department; there is no end to that but ``MOST_LEVELS``. What a team holds its
department holds, and so on upwards, so that a limit above binds everybody below it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from muster.domain.ids import TenantId

MOST_LEVELS: Final = 8
"""A tenant has fewer than so many above it."""


@dataclass(frozen=True, slots=True)
class Quota:
    """GPUs in one tier. ``borrowable``: beyond what is guaranteed; None: no limit, as of the ceiling."""

    guaranteed: int = 0
    borrowable: int | None = None
    ceiling: int | None = None

    @property
    def most(self) -> int | None:
        """What may be held at the most; None: no limit."""
        borrowed = None if self.borrowable is None else self.guaranteed + self.borrowable
        return min((limit for limit in (borrowed, self.ceiling) if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class Member:
    """A tenant's place in the tree. ``weight``: of its share, against those under the same tenant."""

    parent: TenantId | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Tenancy:
    """``members``: whom it does not name is under nobody and of weight 1. ``used``: by tenant and tier, GPUs that it
    held in the past, those of long ago counting less and less.
    """

    members: Mapping[TenantId, Member] = field(default_factory=dict)
    quotas: Mapping[tuple[TenantId, str], Quota] = field(default_factory=dict)
    used: Mapping[tuple[TenantId, str], float] = field(default_factory=dict)

    @classmethod
    def of_ceilings(cls, ceilings: Mapping[tuple[TenantId, str], int]) -> Self:
        """Of tenants side by side, with ceilings alone."""
        return cls(quotas={key: Quota(ceiling=ceiling) for key, ceiling in ceilings.items()})

    def line(self, tenant_id: TenantId) -> tuple[TenantId, ...]:
        """The tenant and all above it, from below."""
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
        """Of each tenant that has one in the tier: a department is guaranteed no less than its teams together."""
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


_ALONE: Final = Member()


@dataclass(frozen=True, slots=True)
class Limit:
    """What keeps ``tenant_id`` or one below it from more: ``held`` of ``most`` GPUs. ``is_ceiling``: else what it may
    borrow. ``kept``: beside what is held, for jobs that wait.
    """

    tenant_id: TenantId
    held: int
    most: int
    is_ceiling: bool
    kept: int = 0

    @property
    def left(self) -> int:
        """Negative where the limit is passed already."""
        return self.most - self.held - self.kept

    def leaving(self, left: int) -> "Limit":
        """With so much more kept that no more is left than that."""
        return replace(self, kept=self.kept + self.left - max(min(left, self.left), min(self.left, 0)))


class Holdings:
    """GPUs by tenant and tier; what a tenant holds those above it hold too. ``num_changes`` only grows.

    What is kept for jobs that wait is held by nobody yet, but no other job may have it of a limit.
    """

    __slots__ = ("_gpus", "_kept", "_lines", "num_changes", "tenancy")

    def __init__(self, tenancy: Tenancy) -> None:
        self.tenancy, self.num_changes = tenancy, 0
        self._gpus: dict[tuple[TenantId, str], int] = {}
        self._kept: dict[tuple[TenantId, str], int] = {}
        self._lines: dict[TenantId, tuple[TenantId, ...]] = {}

    def copy(self) -> "Holdings":
        other = Holdings(self.tenancy)
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

    def keep(self, tenant_id: TenantId, tier: str, num_gpus: int) -> None:
        """For a job that waits, as with ``add``; negative: no more."""
        self.num_changes += 1
        for above in self.line(tenant_id):
            self._kept[above, tier] = self._kept.get((above, tier), 0) + num_gpus

    def set(self, tenant_id: TenantId, tier: str, num_gpus: int, num_kept: int = 0) -> None:
        """Of one alone, where what it holds with all below it is known as a whole, and what is kept for those."""
        self.num_changes += 1
        self._gpus[tenant_id, tier], self._kept[tenant_id, tier] = num_gpus, num_kept

    def of(self, tenant_id: TenantId, tier: str) -> int:
        """With all below it."""
        return self._gpus.get((tenant_id, tier), 0)

    def limit(self, tenant_id: TenantId, tier: str) -> Limit | None:
        """The one that leaves least (I6); the lowest of equal ones."""
        if not self.tenancy.quotas:
            return None
        return min(self.limits(tenant_id, tier), key=lambda limit: limit.left, default=None)

    def limits(self, tenant_id: TenantId, tier: str) -> list[Limit]:
        """Of the tenant and of those above it, from below."""
        return [limit for above in self.line(tenant_id) if (limit := self._limit_of(above, tier)) is not None]

    def _limit_of(self, tenant_id: TenantId, tier: str) -> Limit | None:
        quota = self.tenancy.quotas.get((tenant_id, tier))
        if quota is None or quota.most is None:
            return None
        kept = self._kept.get((tenant_id, tier), 0)
        return Limit(tenant_id, self.of(tenant_id, tier), quota.most, quota.most == quota.ceiling, kept)

    def room(self, tenant_id: TenantId, tier: str) -> int | None:
        """GPUs that the tenant may have beside what it holds and what is kept; None: no limit."""
        limit = self.limit(tenant_id, tier)
        return None if limit is None else max(limit.left, 0)


def refusal_of_parent(parents: Mapping[TenantId, TenantId | None], tenant_id: TenantId, parent: TenantId) -> str | None:
    """Why ``tenant_id`` cannot come under ``parent`` in this tree, or None. ``parents``: of every tenant."""
    above = _above(parents, parent)
    if tenant_id in above:
        return "it is the tenant itself, or below it already: a tree has no circles"
    depth = len(above) + _depth_below(parents, tenant_id)
    if depth > MOST_LEVELS:
        return f"the tree would be {depth} levels deep; {MOST_LEVELS} is the most"
    return None


def _above(parents: Mapping[TenantId, TenantId | None], tenant_id: TenantId) -> Sequence[TenantId]:
    """The tenant and those above it."""
    line: list[TenantId] = []
    at: TenantId | None = tenant_id
    while at is not None and at not in line:
        line.append(at)
        at = parents.get(at)
    return line


def _depth_below(parents: Mapping[TenantId, TenantId | None], tenant_id: TenantId) -> int:
    """Levels from the tenant down, its own among them."""
    lines = (_above(parents, other) for other in parents)
    return max((line.index(tenant_id) + 1 for line in lines if tenant_id in line), default=1)
