"""Places held for the first that wait, and who may run there meanwhile: EASY backfill around a held domain.

For a gang that fits nowhere now the planner looks for the first moment at which enough GPUs of one home are believed
free, and holds those: another runs on them only where its own wall time ends before. Nothing is stored: the next cycle
finds the place anew, from what runs then. (EASY: Lifka, "The ANL/IBM SP scheduling system", 1995.)
"""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from muster.domain.policy import Policy
from scheduler.endings import CLEANING_MS
from scheduler.model import Held, WaitingJob
from scheduler.reclaim import Reclaimer
from scheduler.solver import Chosen, Request, place
from scheduler.topology import NEVER_MS, FleetState, Ints

MAX_SEARCHES: Final = 64
"""A place is looked for so often in a cycle: each look is some bisections over the fleet."""


@dataclass(slots=True)
class _Place:
    """``free``: those of its GPUs that the hold has taken in the fleet's state."""

    cohort: int
    gpus: Ints
    free: Ints
    until_ms: int


class Backfill:
    """The holds of one cycle. Order matters: who comes earlier in the queue holds before who comes later."""

    def __init__(self, state: FleetState, policy: Policy, reclaimer: Reclaimer, now_ms: int) -> None:
        self._state, self._policy, self._reclaimer, self._now_ms = state, policy, reclaimer, now_ms
        self._places: list[_Place] = []
        self._num_searches = 0
        notices_s = [tier.notice_s or 0.0 for tier in policy.tiers.values()]
        self._soon_ms = now_ms + int(max(notices_s, default=0.0) * 1000)

    def hold(
        self, job: WaitingJob, request: Request, at_most_ms: int | None = None, *, is_coming: bool = False
    ) -> Held | None:
        """Hold the place that is believed free first; None where there is none, or enough is held already.

        ``at_most_ms``: by then reclaim will have helped, so nobody else may have the place for longer. ``is_coming``:
        it comes free within a notice, so that nothing is reclaimed: held beside the others, or whoever came later would
        take it, and the next cycle would reclaim after all.
        """
        most = self._policy.queue.holds_per_cohort
        is_full = not is_coming and len(self._places) >= most * len(self._state.layout.cohort_keys)
        if self._num_searches == MAX_SEARCHES or is_full or not most:
            return None
        self._num_searches += 1
        found = self._first_room(job, request)
        if found is None:
            return None
        chosen, until_ms = found
        layout = self._state.layout
        cohort = int(layout.cell_cohort[layout.cell_of_gpu[chosen.gpus[0]]])
        if not is_coming and sum(held.cohort == cohort for held in self._places) >= most:
            return None
        until_ms = until_ms if at_most_ms is None else min(until_ms, at_most_ms)
        free = chosen.gpus[self._state.is_free[chosen.gpus]]
        self._state.take(free)
        self._reclaimer.promises.mask[chosen.gpus] = True
        self._places.append(_Place(cohort, chosen.gpus, free, until_ms))
        uuids = layout.uuids
        return Held(job.job_id, tuple(uuids[gpu] for gpu in chosen.gpus), len(free), until_ms)

    def _first_room(self, job: WaitingJob, request: Request) -> tuple[Chosen, int] | None:
        """Where the gang fits first, and when; None: nobody knows. What fits at one moment fits later too."""
        found = self._at_known_ends(request)
        if found is not None or self._now_ms - job.queued_ms < self._policy.queue.starvation_s * 1000:
            return found
        return self._at_believed_ends(request)

    def _at_known_ends(self, request: Request) -> tuple[Chosen, int] | None:
        ends_ms = self._reclaimer.endings.known_ms()
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
        may run there, and who waits for what comes so soon would else have somebody reclaimed instead.
        """
        state = self._state.for_tier(request.tier)
        coming = self._reclaimer.coming(until_ms, ends_ms)
        soon = self._reclaimer.coming(min(self._soon_ms, until_ms - 1), ends_ms)
        is_soon = np.zeros(len(state.is_free), dtype=np.bool_)
        is_soon[soon] = True
        cells = np.unique(state.layout.cell_of_gpu[np.append(np.flatnonzero(state.is_free), soon)])

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

    def open_to(self, run_s: float | None) -> tuple[int, ...]:
        """The holds, by number, that a job that runs for so long is gone before; None: nobody knows."""
        if run_s is None:
            return ()
        end_ms = self._now_ms + int(run_s * 1000)
        return tuple(
            number for number, place in enumerate(self._places) if end_ms <= place.until_ms and len(place.free)
        )

    def place(self, request: Request, numbers: tuple[int, ...]) -> Chosen | None:
        """On cells that are held, if it can be: what nobody holds is of use to more. Asked with these holds lifted."""
        free = np.concatenate([self._places[number].free for number in numbers])
        layout = self._state.for_tier(request.tier).layout
        inside = place(self._state, request, np.unique(layout.cell_of_gpu[free]))
        return inside or place(self._state, request)

    @contextmanager
    def lifted(self, numbers: tuple[int, ...]) -> Iterator[None]:
        """Inside, what these hold is free; what is still free afterwards is held again."""
        places = [self._places[number] for number in numbers]
        for held in places:
            self._state.give(held.free)
        try:
            yield
        finally:
            for held in places:
                held.free = held.free[self._state.is_free[held.free]]
                self._state.take(held.free)

    def in_the_way(self, request: Request) -> int | None:
        """Of a gang that would fit if nothing were held: until when what it would run on is held."""
        if not any(len(held.free) for held in self._places):
            return None
        with self.lifted(tuple(range(len(self._places)))):
            chosen = place(self._state, request)
        return None if chosen is None else self._first_of(chosen)

    def _first_of(self, chosen: Chosen) -> int | None:
        gpus = set(chosen.gpus.tolist())
        return min((held.until_ms for held in self._places if not gpus.isdisjoint(held.free.tolist())), default=None)
