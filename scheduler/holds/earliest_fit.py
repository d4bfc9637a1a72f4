"""The first place and time for one gang, as attempts end and planned work begins and ends.

A check of one time is a placement on the fleet as it will be then. Between two times from which the gang would meet the
same closings, a gang that fits at one fits later too.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

import numpy as np

from scheduler.fleet.maintenance_end import MaintenanceEnds
from scheduler.fleet.maintenance_start import starting
from scheduler.fleet.topology import NEVER_MS, FleetState, Ints
from scheduler.forecast.end_times import CLEANING_MS
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.solver import Chosen, Request

MAX_CLOSINGS: Final = 16
"""Groups of times with the same closings that are searched for one gang."""


class FirstRoom:
    """The search for one gang, while the fleet stays as it is. ``run_s``: its expected run time."""

    def __init__(
        self,
        state: FleetState,
        reclaimer: Reclaimer,
        maintenance_ends: MaintenanceEnds,
        request: Request,
        run_s: float,
        now_ms: int,
    ) -> None:
        self._closings_ms = np.array(state.closings_ms, dtype=np.int64)
        self._reclaimer, self._reopenings, self._fleet = reclaimer, maintenance_ends, maintenance_ends.fleet()
        self._request, self._run_s, self._now_ms = request, run_s, now_ms

    def first_ms(self, ends_ms: Ints) -> int | None:
        """Return the first time, given these ends, in the order of ``Endings``; None if unknown."""
        later = [*self._reopenings.moments_ms, self._now_ms + CLEANING_MS]
        for moments in self._alike(np.unique(np.append(ends_ms[ends_ms < NEVER_MS], later))):
            if self.at(int(moments[-1]), ends_ms) is not None:
                return int(moments[bisect_left(moments, True, key=lambda at_ms: self.at(at_ms, ends_ms) is not None)])
        return None

    def _alike(self, moments: Ints) -> Iterator[Ints]:
        """Yield in turn the times from which the gang would meet the same closings."""
        numbers = self._closings_ms.searchsorted(moments + int(self._run_s * 1000))
        yield from np.split(moments, np.flatnonzero(np.diff(numbers)) + 1)[:MAX_CLOSINGS]

    def at(self, at_ms: int, ends_ms: Ints) -> Chosen | None:
        state = self._fleet.at(at_ms)
        request = starting(state, self._request, at_ms, self._run_s)
        return self._reclaimer.reach.with_freed(self._reclaimer.coming(at_ms, ends_ms), request, state)

    def leaving_most_to_others(self, until_ms: int, ends_ms: Ints, soon_ms: int) -> Chosen:
        """Return a place at that time that leaves most idle GPUs to others until then.

        GPUs that become free until ``soon_ms``, within a notice, count as idle: other jobs may run there, and a job
        that would wait for them would else have another reclaimed. Of the idle GPUs that the gang needs in any case, it
        takes the least idle cells.
        """
        open_state = self._fleet.at(until_ms)
        request = starting(open_state, self._request, until_ms, self._run_s)
        state = open_state.for_tier(request.tier)
        coming = self._reclaimer.coming(until_ms, ends_ms)
        soon = self._reclaimer.coming(min(soon_ms, until_ms - 1), ends_ms)
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
            chosen = self._reclaimer.reach.with_freed(coming[~is_kept[coming]], request, open_state)
            state.give(idle)
            return chosen

        counts = range(len(cells) + 1)
        chosen = with_first(bisect_left(counts, True, key=lambda count: with_first(count) is not None))
        if chosen is None:
            message = "a gang that had room has none: a bug in Muster"
            raise AssertionError(message)
        return chosen
