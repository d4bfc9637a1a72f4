"""EASY backfill: GPUs are held for the first pending gangs, and other jobs may run on them until then.

For a gang that fits nowhere now the planner searches the first time at which enough GPUs of one home are expected to be
free, and holds them: another job runs on them only if its own wall time ends before. Nothing is stored: the next cycle
finds the place again, from the attempts that run then. (EASY: Lifka, "The ANL/IBM SP scheduling system", 1995.)

A gang of two hosts waits for r0h0, on which an attempt has 60 minutes left. Both hosts are held for it from then on:

    host   now                        minute 60
    r0h0   the attempt                gang
    r0h1   idle, open to backfill     gang

A job with a wall time of up to 60 minutes may start on r0h1 now; one with 61 minutes or without a wall time may not.
"""

from collections.abc import Hashable
from typing import Final

from muster.domain.policy.document import Policy
from scheduler.fleet.topology import FleetState, Ints
from scheduler.holds.earliest_fit import FirstRoom
from scheduler.holds.outcomes import NO_REFUSAL, Refused
from scheduler.holds.places import Holds, Place, at_most
from scheduler.holds.quota_holds import KeptQuota
from scheduler.model import Hold, WaitingJob, Workload
from scheduler.queue.order import expected_s
from scheduler.quota.tenancy import Holdings, Limit
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.solver import Chosen, Request

MAX_SEARCHES: Final = 64
"""Searches for a place in one cycle: each takes some bisections over the fleet."""


class EasyBackfill(Holds):
    """The EASY rule: ``queue.holds_per_cohort`` holds a cohort, and any that become free within a notice."""

    def __init__(
        self, state: FleetState, policy: Policy, reclaimer: Reclaimer, workload: Workload, holdings: Holdings
    ) -> None:
        super().__init__(state, policy, reclaimer, workload)
        now_ms = workload.now_ms
        self._quota = KeptQuota(reclaimer, holdings, now_ms)
        self._num_searches = 0
        notices_s = [tier.notice_s or 0.0 for tier in policy.tiers.values()]
        self._soon_ms = now_ms + int(max(notices_s, default=0.0) * 1000)

    def hold(
        self, job: WaitingJob, request: Request, refused: Refused = NO_REFUSAL, *, is_coming: bool = False
    ) -> Hold | None:
        most = self._policy.queue.holds_per_cohort
        is_full = not is_coming and len(self._places) >= most * len(self._state.layout.cohort_keys)
        if self._num_searches == MAX_SEARCHES or is_full or not most:
            return None
        self._num_searches += 1
        request = request.at_least()
        found = self._first_room(job, request, refused.free_from_ms)
        if found is None:
            return None
        chosen, until_ms = found
        cohort = self._cohort_of(chosen.gpus)
        if not is_coming and sum(self._cohort_of(held.gpus) == cohort for held in self._places) >= most:
            return None
        free = chosen.gpus[self._state.is_free[chosen.gpus]]
        starts_ms = at_most(until_ms, refused)
        if not self._quota.lets_start(job, starts_ms):
            return None
        self._quota.keep(job, starts_ms)
        is_by_reclaim = self._is_by_reclaim(chosen.gpus, until_ms, refused)
        place = Place(job, chosen.gpus, free, starts_ms, is_by_reclaim=is_by_reclaim)
        if is_by_reclaim and not self._num_idle(place):
            return None  # no job can start there in the meantime
        return self._keep(place)

    def distinguishing_key(self, job: WaitingJob) -> Hashable:
        """Return the key of the closings that the job would meet if it started later than now."""
        has_more = self._state.closings_ms and self._num_searches < MAX_SEARCHES and self._policy.queue.holds_per_cohort
        return job.expected_s if has_more else None

    def keep_quota(self, job: WaitingJob) -> int | None:
        from_ms = self._quota.first_moment_ms(job)
        if from_ms is not None:
            self._quota.keep(job, from_ms)
        return from_ms

    def limit(self, job: WaitingJob) -> Limit | None:
        return self._quota.limit(job)

    def _cohort_of(self, gpus: Ints) -> int:
        layout = self._state.layout
        return int(layout.cell_cohort[layout.cell_of_gpu[gpus[0]]])

    def _first_room(self, job: WaitingJob, request: Request, free_from_ms: Ints | None) -> tuple[Chosen, int] | None:
        """Return where the gang fits first, and when; None if unknown."""
        run_s, endings = expected_s(job, self._policy), self._reclaimer.endings
        room = FirstRoom(self._state, self._reclaimer, self._reopenings, request, run_s, self._now_ms)
        ends_ms = endings.known_or_ms(free_from_ms)
        until_ms = room.first_ms(ends_ms)
        if until_ms is not None:
            return room.leaving_most_to_others(until_ms, ends_ms, self._soon_ms), until_ms
        if self._now_ms - job.queued_ms < self._policy.queue.starvation_s * 1000:
            return None
        # A starving job treats an estimate as an end and holds idle GPUs; jobs that are expected to end may run on.
        ends_ms = endings.expected_ms()
        until_ms = room.first_ms(ends_ms)
        chosen = None if until_ms is None else room.at(until_ms, ends_ms)
        return None if chosen is None or until_ms is None else (chosen, until_ms)
