"""EASY backfill around a held domain: places are held for the first that wait.

For a gang that fits nowhere now the planner looks for the first moment at which enough GPUs of one home are believed
free, and holds those: another runs on them only where its own wall time ends before. Nothing is stored: the next cycle
finds the place anew, from what runs then. (EASY: Lifka, "The ANL/IBM SP scheduling system", 1995.)
"""

from bisect import bisect_left
from typing import Final

import numpy as np

from muster.domain.policy import Policy
from scheduler.endings import CLEANING_MS
from scheduler.held_places import HeldPlaces, Place, at_most
from scheduler.kept_quota import KeptQuota
from scheduler.model import Held, WaitingJob
from scheduler.outcomes import Refused
from scheduler.reclaim import Reclaimer
from scheduler.solver import Chosen, Request
from scheduler.tenancy import Holdings, Limit
from scheduler.topology import NEVER_MS, FleetState, Ints

MAX_SEARCHES: Final = 64
"""A place is looked for so often in a cycle: each look is some bisections over the fleet."""


class EasyBackfill(HeldPlaces):
    """As many places as ``queue.holds_per_cohort`` has, beside those that come free within a notice."""

    def __init__(
        self, state: FleetState, policy: Policy, reclaimer: Reclaimer, now_ms: int, holdings: Holdings
    ) -> None:
        super().__init__(state, policy, reclaimer, now_ms)
        self._quota = KeptQuota(reclaimer, holdings, now_ms)
        self._num_searches = 0
        notices_s = [tier.notice_s or 0.0 for tier in policy.tiers.values()]
        self._soon_ms = now_ms + int(max(notices_s, default=0.0) * 1000)

    def hold(
        self, job: WaitingJob, request: Request, refused: Refused | None = None, *, is_coming: bool = False
    ) -> Held | None:
        most = self._policy.queue.holds_per_cohort
        is_full = not is_coming and len(self._places) >= most * len(self._state.layout.cohort_keys)
        if self._num_searches == MAX_SEARCHES or is_full or not most:
            return None
        self._num_searches += 1
        request = request.at_least()
        found = self._first_room(job, request, None if refused is None else refused.free_from_ms)
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
        if not len(free) and is_by_reclaim:
            return None  # nobody can start there in the meantime
        return self._keep(Place(job, chosen.gpus, free, starts_ms, is_by_reclaim=is_by_reclaim))

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
        """Where the gang fits first, and when; None: nobody knows. What fits at one moment fits later too."""
        found = self._at_known_ends(request, free_from_ms)
        if found is not None or self._now_ms - job.queued_ms < self._policy.queue.starvation_s * 1000:
            return found
        return self._at_believed_ends(request)

    def _at_known_ends(self, request: Request, free_from_ms: Ints | None) -> tuple[Chosen, int] | None:
        ends_ms = self._reclaimer.endings.known_or_ms(free_from_ms)
        until_ms = self._first_moment(request, ends_ms)
        if until_ms is None:
            return None
        return self._leaving_most_to_others(request, until_ms, ends_ms), until_ms

    def _at_believed_ends(self, request: Request) -> tuple[Chosen, int] | None:
        """A job that starves takes a belief for a word, and keeps what is idle: who is believed to end may run on."""
        ends_ms = self._reclaimer.endings.believed_ms()
        until_ms = self._first_moment(request, ends_ms)
        chosen = None if until_ms is None else self._at(request, until_ms, ends_ms)
        return None if chosen is None or until_ms is None else (chosen, until_ms)

    def _first_moment(self, request: Request, ends_ms: Ints) -> int | None:
        moments = np.unique(np.append(ends_ms[ends_ms < NEVER_MS], self._now_ms + CLEANING_MS)).tolist()
        if self._at(request, moments[-1], ends_ms) is None:
            return None
        return int(moments[bisect_left(moments, True, key=lambda at_ms: self._at(request, at_ms, ends_ms) is not None)])

    def _at(self, request: Request, until_ms: int, ends_ms: Ints) -> Chosen | None:
        return self._reclaimer.with_freed(self._reclaimer.coming(until_ms, ends_ms), request)

    def _leaving_most_to_others(self, request: Request, until_ms: int, ends_ms: Ints) -> Chosen:
        """Of the places at that moment one with few GPUs that are idle until then, or come free within a notice: others
        may run there, and who waits for what comes so soon would else have somebody reclaimed instead. Of those that it
        needs all the same, the least idle ones.
        """
        state = self._state.for_tier(request.tier)
        coming = self._reclaimer.coming(until_ms, ends_ms)
        soon = self._reclaimer.coming(min(self._soon_ms, until_ms - 1), ends_ms)
        is_soon = np.zeros(len(state.is_free), dtype=np.bool_)
        is_soon[soon] = True
        cell_of_idle = state.layout.cell_of_gpu[np.flatnonzero(state.is_free)]
        cells = np.unique(np.append(cell_of_idle, state.layout.cell_of_gpu[soon]))
        num_idle = np.bincount(cell_of_idle, minlength=state.layout.num_cells)
        cells = cells[np.argsort(num_idle[cells], kind="stable")]

        def with_first(count: int) -> Chosen | None:
            others = state.layout.gpus_of_cells(cells[count:])
            idle = others[state.is_free[others]]
            state.take(idle)
            is_kept = np.zeros_like(is_soon)
            is_kept[others[is_soon[others]]] = True
            chosen = self._reclaimer.with_freed(coming[~is_kept[coming]], request)
            state.give(idle)
            return chosen

        counts = range(len(cells) + 1)
        fewest = bisect_left(counts, True, key=lambda count: with_first(count) is not None)
        chosen = with_first(fewest)
        if chosen is None:
            message = "a gang that had room has none: a bug of ours"
            raise AssertionError(message)
        return chosen
