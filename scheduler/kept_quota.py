"""Quota that is kept for who starts later, in one cycle: others have it who are gone by then, as on GPUs that are held.

What has a place keeps what it needs of its limits from that moment on. So does a job that was passed by enough work and
that a limit keeps waiting: from the moment at which enough of what the limit lets be held has ended. Nothing is stored.
"""

from bisect import bisect_left
from collections import defaultdict

from muster.domain.ids import JobId, TenantId
from scheduler.model import WaitingJob
from scheduler.quota_ahead import Holding
from scheduler.reclaim import Reclaimer
from scheduler.tenancy import Holdings, Limit
from scheduler.topology import NEVER_MS, Ints

_Ends = dict[tuple[TenantId, str], list[tuple[int, int]]]
"""By tenant and tier: when GPUs come back, and how many."""


class KeptQuota:
    """``holdings``: the cycle's own; what is placed counts at once."""

    def __init__(self, reclaimer: Reclaimer, holdings: Holdings, now_ms: int) -> None:
        self._reclaimer, self._holdings, self._now_ms = reclaimer, holdings, now_ms
        self._kept: dict[JobId, Holding] = {}
        self._num_kept = 0
        self._ends: _Ends = defaultdict(list)
        self._num_ends, self._num_notices = 0, (0, 0)
        self._found: dict[tuple[TenantId, str, int], Limit | None] = {}
        self._found_at = (0, 0)

    def keep(self, job: WaitingJob, from_ms: int) -> None:
        """Its fewest GPUs, from then on for as long as it is believed to run."""
        if self._holdings.tenancy.quotas:
            end_ms = self._after(from_ms, job.believed_s)
            self._kept[job.job_id] = Holding(job.tenant_id, job.tier, job.fewest_gpus, from_ms, end_ms)
            self._num_kept += 1

    def limit(self, job: WaitingJob) -> Limit | None:
        """The one that leaves least to the job from now on until it ends, of those of which something is kept."""
        end_ms = self._after(self._now_ms, job.believed_s)
        kept = [one for one in self._kept.values() if one.tier == job.tier and one.start_ms < end_ms]
        if not kept:
            return None
        limits = self._holdings.limits(job.tenant_id, job.tier)
        most = sum(one.num_gpus for one in kept) + job.most_nodes * job.gpus_per_node
        if all(limit.left >= most for limit in limits):
            return None
        as_of = self._holdings.num_changes, self._num_kept
        if as_of != self._found_at:
            self._found, self._found_at = {}, as_of
        alike = job.tenant_id, job.tier, len(kept)
        if alike not in self._found:
            beside = [limit for one in limits if (limit := self._beside(one, job.tier, kept)) is not None]
            self._found[alike] = min(beside, key=lambda limit: limit.left, default=None)
        return self._found[alike]

    def lets_start(self, job: WaitingJob, from_ms: int) -> bool:
        """Whether beside what is kept already its limits let the job start then, as they do now."""
        if not self._kept.keys() - {job.job_id}:
            return True
        own, ends = self._kept.pop(job.job_id, None), self._known()
        limits = self._holdings.limits(job.tenant_id, job.tier)
        is_enough = all(self._left_at(limit, job.tier, from_ms, ends) >= job.fewest_gpus for limit in limits)
        if own is not None:
            self._kept[job.job_id] = own
        return is_enough

    def first_moment_ms(self, job: WaitingJob) -> int | None:
        """When its limits let it start that keep it waiting; None: nobody knows, or another keeps what it needs."""
        limits = self._holdings.limits(job.tenant_id, job.tier)
        found = self._first_by(job, limits, self._known())
        return self._first_by(job, limits, self._believed()) if found is None else found

    def _first_by(self, job: WaitingJob, limits: list[Limit], ends: _Ends) -> int | None:
        """If the ends are those. What is kept counts until it ends: so ever more is left."""
        of_limits = [end_ms for limit in limits for end_ms, _ in self._under(limit, job.tier, ends)]
        of_kept = [one.end_ms for one in self._kept.values() if one.tier == job.tier]
        moments = sorted({at_ms for at_ms in (*of_limits, *of_kept) if self._now_ms <= at_ms < NEVER_MS})

        def is_enough(at_ms: int) -> bool:
            return all(self._left_at(limit, job.tier, at_ms, ends) >= job.fewest_gpus for limit in limits)

        number = bisect_left(moments, True, key=is_enough)
        return None if number == len(moments) else moments[number]

    def _beside(self, limit: Limit, tier: str, kept: list[Holding]) -> Limit | None:
        """With what is kept of it at the moment that leaves least; None: nothing is."""
        own = [one for one in kept if limit.tenant_id in self._holdings.line(one.tenant_id)]
        if not own:
            return None
        left, ends = limit.left, self._known()
        for at_ms in {one.start_ms for one in own}:
            at_once = sum(one.num_gpus for one in own if one.start_ms <= at_ms < one.end_ms)
            left = min(left, self._unheld_at(limit, tier, at_ms, ends) - at_once)
        return limit.leaving(left)

    def _left_at(self, limit: Limit, tier: str, at_ms: int, ends: _Ends) -> int:
        """Where nobody is gone before who has some of it kept."""
        kept = (one for one in self._kept.values() if one.tier == tier and at_ms < one.end_ms)
        own = sum(one.num_gpus for one in kept if limit.tenant_id in self._holdings.line(one.tenant_id))
        return self._unheld_at(limit, tier, at_ms, ends) - own

    def _unheld_at(self, limit: Limit, tier: str, at_ms: int, ends: _Ends) -> int:
        held = sum(num_gpus for end_ms, num_gpus in self._under(limit, tier, ends) if end_ms > at_ms)
        return limit.most - limit.kept - held

    def _under(self, limit: Limit, tier: str, ends: _Ends) -> list[tuple[int, int]]:
        """Of all that counts for the limit."""
        return [
            one
            for (tenant, name), own in ends.items()
            if name == tier and limit.tenant_id in self._holdings.line(tenant)
            for one in own
        ]

    def _known(self) -> _Ends:
        """As ``Endings.known_ms``. What was placed since comes to it; a notice or its withdrawal moves others' ends."""
        endings = self._reclaimer.endings
        num_notices = len(self._reclaimer.reclaims), len(self._reclaimer.promises.withdrawals)
        if num_notices != self._num_notices:
            self._ends, self._num_ends, self._num_notices = defaultdict(list), 0, num_notices
        if self._num_ends < endings.num_holders:
            self._num_ends = _add(self._ends, self._reclaimer, endings.known_ms(), self._num_ends)
        return self._ends

    def _believed(self) -> _Ends:
        ends: _Ends = defaultdict(list)
        _add(ends, self._reclaimer, self._reclaimer.endings.believed_ms(), 0)
        return ends

    def _after(self, from_ms: int, run_s: float | None) -> int:
        return NEVER_MS if run_s is None else min(from_ms + int(run_s * 1000), NEVER_MS)


def _add(ends: _Ends, reclaimer: Reclaimer, ends_ms: Ints, first: int) -> int:
    """From the holder of that number on; how many there are."""
    holders = reclaimer.endings.holders(first)
    for (tenant_id, tier, num_gpus), end_ms in zip(holders, ends_ms[first:].tolist(), strict=True):
        ends[tenant_id, tier].append((end_ms, num_gpus))
    return first + len(holders)
