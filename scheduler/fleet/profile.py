"""Free times of GPUs: the end of the work that runs there, and later holds with start and end.

Times are whole milliseconds, one a GPU; ``NEVER_MS`` is after all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from scheduler.fleet.topology import NEVER_MS, NOWHERE, Flags, FleetState, Ints, Layout
from scheduler.solve.node_filter import node_filter_of
from scheduler.solve.slices import in_groups
from scheduler.solve.solver import Request, level_span


@dataclass(frozen=True, slots=True)
class Reservation:
    """A time in which a job is to run on ``gpus``, distinct indices, from ``start_ms`` to before ``end_ms``."""

    start_ms: int
    end_ms: int
    gpus: Ints


class PlannedWork(NamedTuple):
    """The start and end of planned work on each GPU; ``NEVER_MS``: there is none, or its end is unknown."""

    closes_ms: Ints
    reopens_ms: Ints


class Profile:
    """The free times of one fleet.

    ``free_from_ms``: when the work that runs on each GPU has ended; ``reservations``: later work on them.
    """

    def __init__(
        self, free_from_ms: Ints, reservations: Sequence[Reservation], work: PlannedWork | None = None
    ) -> None:
        self._free_from_ms, self._work = free_from_ms, work
        self._reservations = sorted(reservations, key=lambda one: one.start_ms)

    def opens_ms(self, from_ms: int, run_ms: int, open_ms: int = 0) -> Ints:
        """Return the first time, not before ``from_ms``, from which each GPU is free and open.

        It is free for ``run_ms`` and open for ``open_ms``.
        """
        opens = self._around_reservations(np.maximum(self._free_from_ms, from_ms), run_ms)
        while self._work is not None:
            is_met = (opens < self._work.reopens_ms) & (opens > self._work.closes_ms - open_ms)
            if not is_met.any():
                break
            opens = self._around_reservations(np.where(is_met, self._work.reopens_ms, opens), run_ms)
        return opens

    def _around_reservations(self, opens: Ints, run_ms: int) -> Ints:
        for one in self._reservations:
            own = opens[one.gpus]
            is_before = own < one.end_ms
            if run_ms < NEVER_MS:
                is_before &= own > one.start_ms - run_ms
            opens[one.gpus] = np.where(is_before, one.end_ms, own)
        return opens


class SoonestRoom:
    """The soonest time at which a request has enough GPUs, by counts alone: no place is found before it."""

    def __init__(self, state: FleetState, request: Request) -> None:
        state = state.for_tier(request.tier)
        self._layout, self._request = state.layout, request
        span = level_span(self._layout, request)
        self._groups = None if not span else self._layout.groups[span[-1]]
        self._num_groups = 0 if not span else self._layout.num_groups[span[-1]]
        self._may_take: Flags = state.tier(request.tier).admitted.copy()
        if not request.may_use_spares:
            self._may_take &= ~state.is_spare
        avoided = [cell for node in request.avoid_nodes for cell in self._layout.cells_of_node.get(node, ())]
        self._may_take[self._layout.gpus_of_cells(np.array(avoided, dtype=np.int64))] = False
        fence = node_filter_of(
            state, replace(request, maintenance_start_ms=None)
        )  # what closes depends on when it would run
        self._may_take[self._layout.gpus_of_cells(fence.excluded(state))] = False
        self._row_of, self._column_of = _by_cell(self._layout)

    def of(self, opens_ms: Ints) -> int:
        """Return the time; ``NEVER_MS`` if there is none. ``opens_ms``: when each GPU is free."""
        if self._groups is None:
            return NEVER_MS
        ready = self._ready_ms(np.where(self._may_take, opens_ms, NEVER_MS))
        by_ready = np.argsort(ready)
        order = by_ready[in_groups(self._groups[by_ready], self._num_groups)]
        groups, ready = self._groups[order], ready[order]
        starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]) & (groups != NOWHERE))
        last = starts + self._request.nodes - 1
        last = last[last < len(groups)]
        is_enough = groups[last] == groups[last - (self._request.nodes - 1)]
        return int(ready[last[is_enough]].min(initial=NEVER_MS))

    def _ready_ms(self, opens_ms: Ints) -> Ints:
        """Return when each cell has the GPUs for one host's part."""
        layout, width = self._layout, self._request.gpus_per_node
        most = int(layout.cell_size.max(initial=0))
        if width > most:
            return np.full(layout.num_cells, NEVER_MS, dtype=np.int64)
        of_cells = np.full((layout.num_cells, most), NEVER_MS, dtype=np.int64)
        of_cells[self._row_of, self._column_of] = opens_ms[layout.by_cell]
        ready: Ints = of_cells.max(axis=1) if width == most else np.partition(of_cells, width - 1, axis=1)[:, width - 1]
        return ready


def _by_cell(layout: Layout) -> tuple[Ints, Ints]:
    """Return the cell of each GPU and its place in the cell, in the order of the cells."""
    rows = np.repeat(np.arange(layout.num_cells, dtype=np.int64), layout.cell_size)
    return rows, np.arange(len(rows), dtype=np.int64) - np.repeat(layout.cell_start, layout.cell_size)
