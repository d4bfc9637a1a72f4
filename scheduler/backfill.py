"""Places held for the first that wait, and who may run there meanwhile: EASY backfill around a held domain.

For a gang that fits nowhere now the planner looks for the first moment at which enough GPUs of one home are believed
free, and holds those: another runs on them only where its own wall time ends before. Nothing is stored: the next cycle
finds the place anew, from what runs then. (EASY: Lifka, "The ANL/IBM SP scheduling system", 1995.)
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from muster.domain.ids import JobId
from muster.domain.policy import Policy
from scheduler.model import Held, RunningAttempt, WaitingJob
from scheduler.reclaim import NEVER_MS, Reclaimer
from scheduler.solver import Chosen, Request, place
from scheduler.topology import FleetState, Ints

LEAST_LEFT_MS: Final = 60_000
"""An attempt without a wall time is believed to run at least so much longer."""


@dataclass(slots=True)
class _Place:
    """``free``: those of its GPUs that the hold has taken in the fleet's state."""

    job_id: JobId
    cohort: int
    gpus: Ints
    free: Ints
    until_ms: int


class Backfill:
    """The holds of one cycle. Order matters: who comes earlier in the queue holds before who comes later."""

    def __init__(self, state: FleetState, policy: Policy, reclaimer: Reclaimer, now_ms: int) -> None:
        self._state, self._policy, self._reclaimer, self._now_ms = state, policy, reclaimer, now_ms
        self._places: list[_Place] = []

    def hold(self, job: WaitingJob, request: Request) -> Held | None:
        """Hold the place that is believed free first; None where there is none, or enough is held already."""
        most = self._policy.queue.holds_per_cohort
        if not most:
            return None
        found = self._first_room(request, self._reclaimer.ends_ms(self._believed_end(job)))
        if found is None:
            return None
        chosen, until_ms = found
        cohort = int(self._state.layout.cell_cohort[chosen.cells[0]])
        if sum(held.cohort == cohort for held in self._places) >= most:
            return None
        free = chosen.gpus[self._state.is_free[chosen.gpus]]
        self._state.take(free)
        self._reclaimer.promises.mask[chosen.gpus] = True
        self._places.append(_Place(job.job_id, cohort, chosen.gpus, free, until_ms))
        uuids = self._state.layout.uuids
        return Held(job.job_id, tuple(uuids[gpu] for gpu in chosen.gpus), len(free), until_ms)

    def _first_room(self, request: Request, ends_ms: list[int]) -> tuple[Chosen, int] | None:
        """Where the gang fits first, and when; None: nobody knows. What fits at one moment fits later too."""
        moments = sorted({end_ms for end_ms in ends_ms if end_ms < NEVER_MS})

        def at(until_ms: int) -> Chosen | None:
            return self._reclaimer.with_freed(self._reclaimer.coming(until_ms, ends_ms), request)

        if not moments or at(moments[-1]) is None:
            return None
        until_ms = moments[bisect_left(moments, True, key=lambda end_ms: at(end_ms) is not None)]
        return self._leaving_most_idle(lambda: at(until_ms)), until_ms

    def _leaving_most_idle(self, choose: Callable[[], Chosen | None]) -> Chosen:
        """Of the places at that moment one with few GPUs that are idle until then: they are of use to others."""
        state = self._state
        cells = np.unique(state.layout.cell_of_gpu[np.flatnonzero(state.is_free)])

        def with_first(count: int) -> Chosen | None:
            gpus = state.layout.gpus_of_cells(cells[count:])
            gpus = gpus[state.is_free[gpus]]
            state.take(gpus)
            chosen = choose()
            state.give(gpus)
            return chosen

        counts = range(len(cells) + 1)
        fewest = bisect_left(counts, True, key=lambda count: with_first(count) is not None)
        chosen = with_first(fewest)
        if chosen is None:
            message = "a gang that had room has none: a bug of ours"
            raise AssertionError(message)
        return chosen

    def _believed_end(self, job: WaitingJob) -> Callable[[RunningAttempt, int], int]:
        """By attempt and what is known of its end, or ``NEVER_MS``: a job that starves takes a belief for a word."""
        is_starving = self._now_ms - job.queued_ms >= self._policy.queue.starvation_s * 1000

        def believed(attempt: RunningAttempt, known_ms: int) -> int:
            if known_ms < NEVER_MS or not is_starving:
                return known_ms
            return self._now_ms + max(self._now_ms - attempt.started_ms, LEAST_LEFT_MS)

        return believed

    def open_to(self, run_s: float | None) -> tuple[int, ...]:
        """The holds, by number, that a job of this wall time is gone before; None: it says no wall time."""
        if run_s is None:
            return ()
        end_ms = self._now_ms + int(run_s * 1000)
        return tuple(
            number for number, place in enumerate(self._places) if end_ms <= place.until_ms and len(place.free)
        )

    def place(self, request: Request, numbers: tuple[int, ...]) -> Chosen | None:
        """On cells that are held, if it can be: what nobody holds is of use to more. Asked with these holds lifted."""
        free = np.concatenate([self._places[number].free for number in numbers])
        inside = place(self._state, request, np.unique(self._state.layout.cell_of_gpu[free]))
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

    def in_the_way(self, request: Request) -> tuple[JobId, int] | None:
        """Of a gang that would fit if nothing were held: whose hold, of the earliest start, and that start."""
        if not any(len(held.free) for held in self._places):
            return None
        with self.lifted(tuple(range(len(self._places)))):
            chosen = place(self._state, request)
        return None if chosen is None else self._first_of(chosen)

    def _first_of(self, chosen: Chosen) -> tuple[JobId, int] | None:
        gpus = set(chosen.gpus.tolist())
        owners = [held for held in self._places if not gpus.isdisjoint(held.free.tolist())]
        first = min(owners, key=lambda held: held.until_ms, default=None)
        return None if first is None else (first.job_id, first.until_ms)
