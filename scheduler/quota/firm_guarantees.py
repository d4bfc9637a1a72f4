"""Firm guarantees: those in tiers that no rule reclaims. They are not lent to jobs that cannot be reclaimed.

Two tenants have 16 of 32 reserved GPUs guaranteed each. The first submits four jobs of 8 GPUs that never end:

    job  available  unused guarantees  borrows  decision
    x0   32         16 + 16            0        starts within its guarantee
    x1   24          8 + 16            0        starts within its guarantee
    x2   16          0 + 16            8        waits: the 16 available GPUs are guaranteed to the other tenant

A spot job would start in place of ``x2``: a reserved job of the other tenant reclaims it, by the policy's notice, least
run and cap. Available are the GPUs that a tier admits without the ones of jobs that it cannot reclaim. Counts are of
GPUs, not of places: a gang may still wait for whole hosts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from muster.domain.ids import TenantId
from scheduler.fleet.topology import Flags, Ints
from scheduler.quota.tenancy import Tenancy


@dataclass(slots=True)
class FirmPool:
    """The GPUs from which the guarantees of ``tiers`` are met together.

    ``reclaims``: the tiers from which one of ``tiers`` reclaims. ``gpus``: the GPUs that one of ``tiers`` admits, in
    use or not. ``available``: how many of them no job of another tier uses.
    """

    tiers: frozenset[str]
    reclaims: frozenset[str]
    gpus: Flags
    available: int


class _Unused:
    """The unused guarantees of one tier: of each tenant the larger of its own and the sum of its teams'."""

    def __init__(self, tenancy: Tenancy, tier: str) -> None:
        self._own = {tenant: quota.guaranteed for (tenant, name), quota in tenancy.quotas.items() if name == tier}
        self._lines: dict[TenantId, tuple[TenantId, ...]] = {}
        self._tenancy = tenancy
        self._in_use: dict[TenantId, int] = defaultdict(int)
        self._of_teams: dict[TenantId | None, int] = defaultdict(int)
        self._unused: dict[TenantId, int] = defaultdict(int)
        for tenant in self._own:
            self._count(self._line(tenant))
        self.most = self.total
        """The sum while no tenant has a GPU."""

    @property
    def total(self) -> int:
        return self._of_teams[None]

    def add(self, tenant: TenantId, num_gpus: int) -> None:
        """Count GPUs of the tenant and of all above it."""
        line = self._line(tenant)
        for above in line:
            self._in_use[above] += num_gpus
        self._count(line)

    def left_for(self, tenant: TenantId) -> int:
        """Return how many more GPUs of the tenant are within guarantees of its line."""
        fewer, line = 0, self._line(tenant)
        for above in line:
            fewer = self._unused[above] - max(self._of_teams[above] - fewer, 0)
        return fewer

    def has_others(self, line: Sequence[TenantId]) -> bool:
        """Return whether a tenant outside of the line has a guarantee."""
        return any(guaranteed and tenant not in line for tenant, guaranteed in self._own.items())

    def _count(self, line: Sequence[TenantId]) -> None:
        for tenant, above in zip(line, (*line[1:], None), strict=True):
            unused = max(self._own.get(tenant, 0) - self._in_use[tenant], self._of_teams[tenant])
            self._of_teams[above] += unused - self._unused[tenant]
            self._unused[tenant] = unused

    def _line(self, tenant: TenantId) -> tuple[TenantId, ...]:
        if tenant not in self._lines:
            self._lines[tenant] = self._tenancy.line(tenant)
        return self._lines[tenant]


def used_within(tenancy: Tenancy, tier: str, in_use: Mapping[tuple[TenantId, str], int]) -> int:
    """Return how many of the GPUs in use in the tier are within guarantees. ``in_use``: of each tenant alone."""
    unused = _Unused(tenancy, tier)
    for (tenant, name), num_gpus in in_use.items():
        if name == tier:
            unused.add(tenant, num_gpus)
    return unused.most - unused.total


class FirmGuarantees:
    """The account of one cycle: what each tenant may still get without borrowing what is guaranteed to others.

    ``pools``: sets of the tiers that have such guarantees, each tier alone and all together among them.
    """

    def __init__(self, tenancy: Tenancy, pools: Sequence[FirmPool]) -> None:
        self._tenancy, self._pools = tenancy, list(pools)
        self._unused = {tier: _Unused(tenancy, tier) for tier in {tier for pool in pools for tier in pool.tiers}}
        self._capacity = [pool.available for pool in pools]
        self._is_rest_kept = False

    def add(self, tenant: TenantId, tier: str, num_gpus: int) -> None:
        """Count GPUs that the tenant has, or that are held for its jobs."""
        if tier in self._unused:
            self._unused[tier].add(tenant, num_gpus)
        for pool in self._pools:
            if tier not in pool.reclaims:
                pool.available -= num_gpus

    def leave_out(self, gpus: Flags, in_use: Iterable[tuple[str, Ints]] = ()) -> None:
        """Count these GPUs as not there: spares, on which no new job of a tenant starts.

        ``in_use``: the tier and GPUs of each attempt that ``add`` counts. Its spares are not taken off twice.
        """
        attempts = [(tier, spares) for tier, own in in_use if len(spares := own[gpus[own]])]
        for number, pool in enumerate(self._pools):
            num_gpus = int(np.count_nonzero(pool.gpus & gpus))
            pool.available -= num_gpus
            self._capacity[number] -= num_gpus
        for tier, spares in attempts:
            self.use_spares(tier, spares)

    def use_spares(self, tier: str, spares: Ints) -> None:
        """Count spares that a job of the tier uses: ``add`` takes them off, and ``leave_out`` has already."""
        for pool in self._pools:
            if tier not in pool.reclaims:
                pool.available += int(np.count_nonzero(pool.gpus[spares]))

    def room(self, tenant: TenantId, tier: str) -> int | None:
        """Return how many more GPUs the tenant may have in the tier; None: any number.

        Where nothing is left unused of guarantees of others, they limit nothing: the job waits for GPUs in use.
        """
        own = self._unused.get(tier)
        left = 0 if own is None else own.left_for(tenant)
        slacks = [
            pool.available - unused
            for pool in self._pools
            if self._is_about(pool, tier)
            and ((unused := self._unused_in(pool)) > (left if tier in pool.tiers else 0) or self._is_rest_kept)
        ]
        if not slacks:
            return None
        return left + (0 if self._is_rest_kept else max(min(slacks), 0))

    def may_refuse(self, tenant: TenantId, tier: str) -> bool:
        """Return whether guarantees of others may refuse a job of the tenant later.

        That its own guarantee has enough left now does not matter: other jobs of the tenant may use that before.
        """
        line = self._tenancy.line(tenant)
        return any(
            self._unused[one].has_others(line if one == tier else ())
            for pool in self._pools
            if self._is_about(pool, tier)
            for one in pool.tiers
        )

    def keep_rest(self, tenant: TenantId, tier: str, num_gpus: int) -> None:
        """Lend nothing more in this cycle, if the tenant could borrow for so many GPUs once others have ended."""
        own = self._unused.get(tier)
        borrowed = num_gpus - (0 if own is None else own.left_for(tenant))
        most = min(
            capacity - sum(self._unused[one].most for one in pool.tiers)
            for pool, capacity in zip(self._pools, self._capacity, strict=True)
            if self._is_about(pool, tier)
        )
        if borrowed <= most:
            self._is_rest_kept = True

    def copy(self) -> "FirmGuarantees":
        """Return a copy that counts by itself."""
        shared = [self._tenancy, *(pool.gpus for pool in self._pools)]
        return deepcopy(self, {id(one): one for one in shared})

    def _is_about(self, pool: FirmPool, tier: str) -> bool:
        """Return whether a job of the tier borrows from the pool.

        It does if no tier there reclaims it. If it has guarantees in its own tier, only pools count that include them.
        """
        return tier not in pool.reclaims and (tier in pool.tiers or tier not in self._unused)

    def _unused_in(self, pool: FirmPool) -> int:
        return sum(self._unused[tier].total for tier in pool.tiers)
