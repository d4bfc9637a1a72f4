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

from muster.domain.ids import JobId
from muster.domain.policy.document import Policy
from scheduler.fleet.topology import NEVER_MS, FleetState, Ints
from scheduler.forecast.end_times import CLEANING_MS
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
MARGIN_MS: Final = CLEANING_MS
"""Time between the last end on a place and the start that is firm: its GPUs are proved clean."""


class EasyBackfill(Holds):
    """The EASY rule: ``queue.holds_per_cohort`` holds a cohort, and any that become free within a notice.

    Places of firm starts are held in any case, and count.
    """

    has_firm_starts = True

    def __init__(
        self, state: FleetState, policy: Policy, reclaimer: Reclaimer, workload: Workload, holdings: Holdings
    ) -> None:
        super().__init__(state, policy, reclaimer, workload)
        now_ms = workload.now_ms
        self._quota, self._firm = KeptQuota(reclaimer, holdings, now_ms), holdings.firm
        self._num_searches = 0
        self._lifted: dict[JobId, Place] = {}
        notices_s = [tier.notice_s or 0.0 for tier in policy.tiers.values()]
        self._soon_ms = now_ms + int(max(notices_s, default=0.0) * 1000)

    def hold(
        self, job: WaitingJob, request: Request, refused: Refused = NO_REFUSAL, *, is_coming: bool = False
    ) -> Hold | None:
        if job.job_id in self._lifted:
            return self._again(self._lifted.pop(job.job_id))
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
        is_beyond = sum(self._cohort_of(held.gpus) == cohort for held in self._places) >= most
        if is_beyond and not is_coming:
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
        is_awaited = len(free) < len(chosen.gpus)  # else it can start in the next cycle, whenever that is
        if is_awaited and not is_by_reclaim and not is_beyond and not self.may_be_refused(job):
            place.latest_ms = self._soon_latest_ms(job, chosen.gpus, starts_ms)
        return self._keep(place)

    def reserve(self, job: WaitingJob, gpus: Ints, latest_ms: int) -> None:
        until_ms = min(max(self._reclaimer.endings.last_ms(gpus), self._now_ms), latest_ms)
        self._again(Place(job, gpus, gpus, until_ms, latest_ms=latest_ms))

    def seek(self, job: WaitingJob, request: Request, latest_ms: int) -> bool:
        found = None if self._num_searches == MAX_SEARCHES else self._found(job, request, latest_ms)
        if found is not None:
            self._again(found)
        return found is not None

    def improve(self, job: WaitingJob, request: Request) -> None:
        kept = self._removed(job.job_id)
        if kept is None or kept.latest_ms is None:
            return
        found = None if self._num_searches == MAX_SEARCHES else self._found(job, request, kept.latest_ms)
        self._again(kept if found is None or found.until_ms > kept.until_ms else found)

    def lift(self, job_id: JobId) -> bool:
        place = self._removed(job_id)
        if place is not None:
            self._lifted[job_id] = place
        return place is not None

    def settle(self, job_id: JobId, *, is_served: bool) -> None:
        place = self._lifted.pop(job_id, None)
        if place is not None and not is_served:
            self._again(place)

    def is_lifted(self, job: WaitingJob) -> bool:
        return job.job_id in self._lifted

    def lets_start(self, job: WaitingJob, from_ms: int) -> bool:
        return self._quota.lets_start(job, from_ms)

    def may_be_refused(self, job: WaitingJob) -> bool:
        # A place keeps no share of a guarantee or of what guarantees leave over: other jobs may use that up before.
        return self._firm is not None and self._firm.may_refuse(job.tenant_id, job.tier)

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

    def _found(self, job: WaitingJob, request: Request, latest_ms: int) -> Place | None:
        """Return the place that is free first, if it is certain to be free in time for this latest start."""
        if self.may_be_refused(job):
            return None
        self._num_searches += 1
        found = self._first_room(job, request.at_least(), None)
        if found is None:
            return None
        chosen, until_ms = found
        own_ms = self._latest_ms(job, chosen.gpus, until_ms)
        if own_ms is None or own_ms > latest_ms or not self._quota.lets_start(job, until_ms):
            return None
        return Place(job, chosen.gpus, chosen.gpus, until_ms, latest_ms=latest_ms)

    def _latest_ms(self, job: WaitingJob, gpus: Ints, until_ms: int) -> int | None:
        """Return when the job has started on these GPUs for certain; None if that is only expected."""
        last_ms = max(self._reclaimer.endings.last_ms(gpus), until_ms)
        is_usable = self._state.tier(job.tier).admitted[gpus].all() and not self._num_worked_on(gpus, until_ms)
        is_certain = last_ms < NEVER_MS and bool(is_usable)
        return last_ms + MARGIN_MS if is_certain else None

    def _soon_latest_ms(self, job: WaitingJob, gpus: Ints, until_ms: int) -> int | None:
        """Return the latest start if that is certain, and soon enough to be firm."""
        latest_ms = self._latest_ms(job, gpus, until_ms)
        soon_ms = self._now_ms + self._policy.queue.firm_within_s * 1000 + MARGIN_MS
        return latest_ms if latest_ms is not None and latest_ms <= soon_ms else None

    def _again(self, place: Place) -> Hold:
        """Hold the place, or what of it is idle now."""
        place.free = place.gpus[self._state.is_free[place.gpus]]
        self._quota.keep(place.job, place.until_ms)
        return self._keep(place)

    def _removed(self, job_id: JobId) -> Place | None:
        """Return the job's place, which is no longer held."""
        for number, one in enumerate(self._places):
            if one.job.job_id == job_id:
                self._state.give(one.free)
                self._reclaimer.holds.uncover(one.gpus)
                self._quota.drop(job_id)
                self._num_changes += 1
                return self._places.pop(number)
        return None

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
