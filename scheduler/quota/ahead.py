"""The time at which a tenant's quota lets a job start (I6), given running attempts and the holds of others."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.domain.ids import TenantId
from scheduler.fleet.topology import NEVER_MS, Ints
from scheduler.model import WaitingJob
from scheduler.quota.tenancy import Holdings, Limit
from scheduler.reclaim.reclaim import Reclaimer


@dataclass(frozen=True, slots=True)
class Holding:
    """The use of ``num_gpus`` by a tenant in a tier, from ``start_ms`` to before ``end_ms``."""

    tenant_id: TenantId
    tier: str
    num_gpus: int
    start_ms: int
    end_ms: int


class Returning:
    """The times at which attempts release GPUs of a limit: attempts of the limit's tenant and of all below it."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._of_limit: defaultdict[tuple[TenantId, str], list[tuple[int, int]]] = defaultdict(list)
        self._in_order: dict[tuple[TenantId, str], tuple[Ints, Ints]] = {}

    def add(self, tenant_id: TenantId, tier: str, num_gpus: int, end_ms: int) -> None:
        for above in self._holdings.line(tenant_id):
            if (above, tier) in self._holdings.tenancy.quotas:
                self._of_limit[above, tier].append((end_ms, num_gpus))
                self._in_order.pop((above, tier), None)

    def ends_ms(self, limit: Limit, tier: str) -> Ints:
        return self._ordered(limit, tier)[0]

    def assigned_at(self, limit: Limit, tier: str, moments_ms: Ints) -> Ints:
        """Return the GPUs that are not released by each time."""
        ends_ms, left = self._ordered(limit, tier)
        held: Ints = left[ends_ms.searchsorted(moments_ms, side="right")]
        return held

    def _ordered(self, limit: Limit, tier: str) -> tuple[Ints, Ints]:
        """Return the ends, and the GPUs in use before each, and after the last."""
        key = limit.tenant_id, tier
        if key not in self._in_order:
            own = np.array(sorted(self._of_limit[key]), dtype=np.int64).reshape(-1, 2)
            left = np.append(own[::-1, 1].cumsum()[::-1], 0)
            self._in_order[key] = own[:, 0], left
        return self._in_order[key]


class QuotaAhead:
    """The quota ahead in one cycle, by its ``holdings``. Callers pass the GPUs that are ``reserved`` for others."""

    def __init__(self, reclaimer: Reclaimer, holdings: Holdings) -> None:
        self._reclaimer, self._holdings = reclaimer, holdings
        self._returning, self._num_returning, self._num_notices = Returning(holdings), 0, (0, 0)

    def known(self) -> Returning:
        """Return the releases at the known ends. New placements are added; a notice or its withdrawal changes ends."""
        endings, reclaimer = self._reclaimer.endings, self._reclaimer
        num_notices = len(reclaimer.reclaims) + reclaimer.num_counted_on, len(reclaimer.holds.withdrawals)
        if num_notices != self._num_notices:
            self._returning, self._num_returning, self._num_notices = Returning(self._holdings), 0, num_notices
        if self._num_returning < endings.num_holders:
            self._num_returning = self._add(self._returning, endings.known_ms(), self._num_returning)
        return self._returning

    def expected(self) -> Returning:
        """Return the releases at the estimated ends."""
        returning = Returning(self._holdings)
        self._add(returning, self._reclaimer.endings.expected_ms(), 0)
        return returning

    def _add(self, returning: Returning, ends_ms: Ints, first: int) -> int:
        """Add the holders from that number on, and return how many there are."""
        holders = self._reclaimer.endings.holders(first)
        for holder, end_ms in zip(holders, ends_ms[first:].tolist(), strict=True):
            returning.add(*holder, end_ms)
        return first + len(holders)

    def first_ms(self, job: WaitingJob, from_ms: int, returning: Returning, reserved: Sequence[Holding]) -> int:
        """Return the first time, not before ``from_ms``, from which its fewest GPUs are within its limits; or never.

        They stay so until it ends.
        """
        limits = self._holdings.limits(job.tenant_id, job.tier)
        if not limits:
            return from_ms
        of_limits = [(limit, self._counting(limit, job.tier, reserved)) for limit in limits]
        ends = [returning.ends_ms(limit, job.tier) for limit in limits]
        moments = np.unique(np.concatenate([*ends, *(own[2] for _, own in of_limits)]))
        moments = np.append(from_ms, moments[(moments > from_ms) & (moments < NEVER_MS)])
        is_enough = np.ones(len(moments), dtype=np.bool_)
        for limit, own in of_limits:
            held = self._most_assigned(limit, job, moments, returning, own)
            is_enough &= held + job.fewest_gpus <= limit.most - limit.kept
        first = int(is_enough.argmax())
        return int(moments[first]) if is_enough[first] else NEVER_MS

    def tightest(
        self, job: WaitingJob, from_ms: int, returning: Returning, reserved: Sequence[Holding]
    ) -> Limit | None:
        """Return the limit that leaves the job least if it starts then."""
        limits = []
        for limit in self._holdings.limits(job.tenant_id, job.tier):
            own = self._counting(limit, job.tier, reserved)
            held = self._most_assigned(limit, job, np.array([from_ms]), returning, own).item()
            limits.append(limit.leaving(limit.most - limit.kept - held))
        return min(limits, key=lambda limit: limit.left, default=None)

    def end_ms(self, job: WaitingJob, from_ms: int) -> int:
        """Return when it is expected to have ended."""
        return NEVER_MS if job.expected_run_s is None else min(from_ms + int(job.expected_run_s * 1000), NEVER_MS)

    def _counting(self, limit: Limit, tier: str, reserved: Sequence[Holding]) -> Ints:
        """Return the holds that count for the limit: rows of GPUs, starts, and ends."""
        line = self._holdings.line
        own = [
            (one.num_gpus, one.start_ms, one.end_ms)
            for one in reserved
            if one.tier == tier and limit.tenant_id in line(one.tenant_id)
        ]
        return np.array(own, dtype=np.int64).reshape(-1, 3).T

    def _most_assigned(self, limit: Limit, job: WaitingJob, moments: Ints, returning: Returning, own: Ints) -> Ints:
        """Return the most GPUs in use at once during a run that starts at each of these times.

        The number grows only when a hold starts, so only those times are tried.
        """
        num_gpus, starts, ends = own

        def assigned_at(at_ms: Ints) -> Ints:
            is_there = (starts <= at_ms[:, None]) & (at_ms[:, None] < ends)
            held: Ints = returning.assigned_at(limit, job.tier, at_ms) + is_there @ num_gpus
            return held

        most = assigned_at(moments)
        if len(starts):
            until_ms = NEVER_MS if job.expected_run_s is None else moments + int(job.expected_run_s * 1000)
            is_met = (moments[:, None] < starts) & (starts < np.broadcast_to(until_ms, moments.shape)[:, None])
            most = np.maximum(most, np.where(is_met, assigned_at(starts), 0).max(axis=1))
        return most
