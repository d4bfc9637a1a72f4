"""Conservative backfill: each pending job has a hold, and no later job delays it.

In their order the jobs get holds. Each hold starts at the earliest time at which a home of its level is free for as
long as the job is expected to run, given the running attempts and all holds before it. A job that fits now may start if
it ends before the holds on its GPUs, or if all these holds find other GPUs for the same times. (Mu'alem and Feitelson,
"Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling", 2001.)

Nothing is stored, and yet later jobs do not move a hold to a later time: places are taken in the fleet's order
(``solver.place``), so that the same place is chosen again from the GPUs that remain when others run next to it.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from muster.domain.ids import TenantId
from muster.domain.policy.document import Policy
from scheduler.fleet.profile import PlannedWork, Profile, Reservation, SoonestRoom
from scheduler.fleet.topology import NEVER_MS, Flags, FleetState, Ints
from scheduler.holds.outcomes import NO_REFUSAL, Refused
from scheduler.holds.places import Holds, Place, at_most
from scheduler.model import Hold, WaitingJob, Workload
from scheduler.queue.order import expected_s
from scheduler.quota.ahead import Holding, QuotaAhead, Returning
from scheduler.quota.tenancy import Holdings, Limit
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.solver import Chosen, Request, place, place_smaller

MAX_SEARCHES: Final = 64
"""Times that are tried for one job: more than a few are needed only if slices, labels or closings exclude much."""
SEARCHES_PER_PLACE: Final = 2
"""Searches for a place in one cycle, as a multiple of ``queue.reservations_max``."""
MAX_ALONGSIDE: Final = 16
"""Trials in one cycle in which all holds are searched again as if one more job ran."""


@dataclass(frozen=True, slots=True)
class _Query:
    """The arguments of one search for a place."""

    job: WaitingJob
    request: Request
    refused: Refused


class ConservativeBackfill(Holds):
    """Holds for pending jobs that can start within the window.

    The first ``queue.reservations_max`` jobs get one, within ``queue.reservation_window_s``.
    """

    def __init__(
        self, state: FleetState, policy: Policy, reclaimer: Reclaimer, workload: Workload, holdings: Holdings
    ) -> None:
        super().__init__(state, policy, reclaimer, workload)
        self._holdings, self._quota = holdings, QuotaAhead(reclaimer, holdings)
        self._quota_kept: list[Holding] = []
        self._queries: list[_Query] = []
        self._is_reserved: Flags = np.zeros(len(state.layout.uuids), dtype=np.bool_)
        has_work = state.closings_ms or self._reopenings.moments_ms
        closes_ms = state.cell_closes_ms[state.layout.cell_of_gpu]
        self._work = PlannedWork(closes_ms, self._reopenings.of_gpus()) if has_work else None
        self._starting: Place | None = None
        """The place of the job on trial, which would run there from now on."""
        self._not_before: dict[tuple[Request, TenantId, int], int] = {}
        """When the last of equal jobs starts: the next one does not start before."""
        self._num_searches, self._num_alongside = 0, 0
        self._moved: list[Hold] = []
        self._never_alongside: set[tuple[Request, float | None]] = set()
        self._horizon_ms = workload.now_ms + int(policy.queue.reservation_window_s * 1000)

    def _is_full(self, *, is_coming: bool = False) -> bool:
        most = self._policy.queue.reservations_max
        has_most = len(self._places) >= most and not is_coming
        return has_most or self._num_searches >= most * SEARCHES_PER_PLACE

    def books_for_quota(self) -> bool:
        return not self._is_full()

    def distinguishing_key(self, job: WaitingJob) -> Hashable:
        """Return the key of how long the job runs, and of its tenant where a quota bounds its start."""
        if self._is_full():
            return None
        has_limit = self._holdings.limit(job.tenant_id, job.tier) is not None
        return job.expected_run_s, job.tenant_id if has_limit else None

    def hold(
        self, job: WaitingJob, request: Request, refused: Refused = NO_REFUSAL, *, is_coming: bool = False
    ) -> Hold | None:
        if self._is_full(is_coming=is_coming):
            return None
        self._num_searches += 1
        return self._book(_Query(job, request, refused))

    def _book(self, query: _Query) -> Hold | None:
        found = self._first_room(query)
        if found is None:
            return None
        chosen, start_ms = found
        until_ms = at_most(start_ms, query.refused)
        before = [one for one in self._places if one.until_ms < until_ms and np.isin(one.gpus, chosen.gpus).any()]
        free = chosen.gpus[self._state.is_free[chosen.gpus]]
        booked = Place(query.job, chosen.gpus, free, until_ms, self._quota.end_ms(query.job, start_ms), len(before))
        booked.is_by_reclaim = self._is_by_reclaim(chosen.gpus, until_ms, query.refused)
        held = self._keep(booked)
        self._queries.append(query)
        self._is_reserved[chosen.gpus] = True
        self._hand_over(booked)
        return held if booked.free is free else self._hold(booked)

    def _hand_over(self, reserved: Place) -> None:
        """Give the idle GPUs of common places to the hold that starts first."""
        for other in self._places:
            if other.until_ms > reserved.until_ms:
                is_common = np.isin(other.free, reserved.gpus)
                reserved.free = np.union1d(reserved.free, other.free[is_common])
                other.free = other.free[~is_common]

    def _first_room(self, query: _Query) -> tuple[Chosen, int] | None:
        """Return where the job fits first, and when; None if unknown, or not within the window."""
        endings, job = self._reclaimer.endings, query.job
        free_from_ms = query.refused.free_from_ms
        found = self._first_in(query, endings.known_or_ms(free_from_ms), self._quota.known())
        if found is not None or self._now_ms - job.queued_ms < self._policy.queue.starvation_s * 1000:
            return found
        return self._first_in(query, endings.expected_ms(), self._quota.expected())

    def _first_in(self, query: _Query, ends_ms: Ints, returning: Returning) -> tuple[Chosen, int] | None:
        """Return the first place, given these ends. Between two times at which something ends, less and less fits."""
        profile, booked, fleet = self._profile(query.request.tier, ends_ms), self._reserved(), self._reopenings.fleet()
        soonest = SoonestRoom(self._reopenings.in_the_end, query.request.at_least())
        run_ms, open_ms = self._quota.end_ms(query.job, 0), int(expected_s(query.job, self._policy) * 1000)
        alike = query.request, query.job.tenant_id, run_ms
        at_ms = self._not_before.get(alike, self._now_ms)
        for _ in range(MAX_SEARCHES):
            at_ms = self._quota.first_ms(query.job, at_ms, returning, booked)
            if at_ms > self._horizon_ms:
                return None
            opens_ms = profile.opens_ms(at_ms, run_ms, open_ms)
            first_ms = soonest.of(opens_ms)
            if first_ms > at_ms:
                at_ms = first_ms
                continue
            chosen = self._on(fleet.at(at_ms), query, opens_ms <= at_ms, at_ms)
            if chosen is not None:
                self._not_before[alike] = at_ms
                return chosen, at_ms
            at_ms = int(opens_ms[opens_ms > at_ms].min(initial=self._reopenings.next_ms(at_ms)))
        return None

    def _profile(self, tier: str, ends_ms: Ints) -> Profile:
        free_from_ms = self._reclaimer.endings.free_from_ms(ends_ms)
        for one in self._places:
            free_from_ms[one.free] = self._now_ms
        free_from_ms[self._reclaimer.holds.mask & ~self._is_reserved] = NEVER_MS
        if self._starting is not None:
            free_from_ms[self._starting.gpus] = self._starting.end_ms
        if self._work is not None:
            is_shut = self._reopenings.in_the_end.tier(tier).admitted & ~self._state.tier(tier).admitted
            free_from_ms = np.where(is_shut, np.maximum(free_from_ms, self._work.reopens_ms), free_from_ms)
        bookings = [Reservation(one.until_ms, one.end_ms, one.gpus) for one in self._places]
        return Profile(free_from_ms, bookings, self._work)

    def _reserved(self) -> list[Holding]:
        """Return the quota in use ahead, in addition to that of running attempts."""
        ahead = self._places if self._starting is None else [self._starting, *self._places]
        held = [Holding(one.job.tenant_id, one.job.tier, len(one.gpus), one.until_ms, one.end_ms) for one in ahead]
        return [*held, *self._quota_kept]

    def keep_quota(self, job: WaitingJob) -> int | None:
        for returning in (self._quota.known(), self._quota.expected()):
            from_ms = self._quota.first_ms(job, self._now_ms, returning, self._reserved())
            if from_ms < NEVER_MS:
                end_ms = self._quota.end_ms(job, from_ms)
                self._quota_kept.append(Holding(job.tenant_id, job.tier, job.fewest_gpus, from_ms, end_ms))
                return from_ms
        return None

    def moved(self) -> list[Hold]:
        moved, self._moved = self._moved, []
        return moved

    def reserved(self, job: WaitingJob) -> Limit | None:
        if not (self._places or self._quota_kept) or self._holdings.limit(job.tenant_id, job.tier) is None:
            return None
        limit = self._quota.tightest(job, self._now_ms, self._quota.known(), self._reserved())
        return None if limit is None or limit.left >= job.fewest_gpus else limit

    def _on(self, state: FleetState, query: _Query, is_open: Flags, at_ms: int) -> Chosen | None:
        """Return the place on these GPUs of the fleet as it is at that time, for a start then."""
        end_ms = at_ms + expected_s(query.job, self._policy) * 1000
        request = replace(query.request, maintenance_start_ms=state.last_closing_ms(end_ms))
        gpus = np.flatnonzero(is_open & ~state.is_free)
        if not request.may_use_spares:
            gpus = gpus[~state.is_spare[gpus]]
        state.give(gpus)
        chosen = self._chosen(request, state)
        state.take(gpus)
        return chosen

    def _chosen(self, request: Request, state: FleetState | None = None) -> Chosen | None:
        """Return the place with as many hosts as an elastic job may have, so that no other job counts on them."""
        state = state or self._state
        chosen = place(state, request, in_order=True) or place_smaller(state, request, in_order=True)
        if chosen is None or (state.is_spare[chosen.gpus].any() and not request.may_use_spares):
            return None
        return chosen

    def place(self, request: Request, numbers: tuple[int, ...]) -> Chosen | None:
        del numbers  # in the fleet's order, for whichever jobs they are held
        return self._chosen(request)

    def alongside(self, job: WaitingJob, request: Request) -> Chosen | None:
        end_ms, alike = self._quota.end_ms(job, self._now_ms), (request, job.expected_run_s)
        is_in_reach = any(len(one.free) and one.until_ms < end_ms for one in self._places)
        if not is_in_reach or alike in self._never_alongside or self._num_alongside == MAX_ALONGSIDE:
            return None
        if job.keep or self._state.is_spare.any():
            return None
        if self._reclaimer.num_counted_on or self._reclaimer.reclaims:
            return None  # places ahead would be searched again with notices on which they must not count
        before, asked, is_booked = self._places, self._queries, self._is_reserved
        self._let_go()
        chosen = self._chosen(request)
        if chosen is not None:
            starting = Place(job, chosen.gpus, chosen.gpus, self._now_ms, end_ms)
            if self._stay_as_early(asked, before, starting):
                self._moved = [self._hold(one) for one in self._places]
                return chosen
            self._let_go()
        self._never_alongside.add(alike)
        self._places, self._queries, self._is_reserved = before, asked, is_booked
        self._num_changes += 1
        self._reclaimer.holds.cover(is_booked)
        for one in before:
            self._state.take(one.free)
        return None

    def _stay_as_early(self, query: Sequence[_Query], before: Sequence[Place], starting: Place) -> bool:
        """Return whether all holds keep their times if one more job starts now. They are stored as far as computed."""
        self._num_alongside += 1
        self._state.take(starting.gpus)
        self._starting = starting
        held = ((self._book(one), was) for one, was in zip(query, before, strict=True))
        is_as_early = all(one is not None and one.until_ms == was.until_ms for one, was in held)
        self._state.give(starting.gpus)
        self._starting = None
        return is_as_early

    def _let_go(self) -> None:
        for one in self._places:
            self._state.give(one.free)
        self._reclaimer.holds.uncover(self._is_reserved)
        self._is_reserved = np.zeros_like(self._is_reserved)
        self._places, self._queries = [], []
        self._num_changes += 1
        self._not_before.clear()
