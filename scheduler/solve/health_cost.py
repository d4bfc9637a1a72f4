"""The weight of health: a gang's cost in a place is the failures that its GPUs are expected to add while it runs.

A place with far fewer failures is taken before one that leaves less over; small differences only break ties. A small
job of a reclaimable tier prefers weak GPUs instead.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduler.fleet.tally import Tally
from scheduler.fleet.topology import Flags, FleetState, Ints, Layout
from scheduler.solve.rail_sets import in_rail_order, picked_on_rails
from scheduler.solve.request import Request

_HOUR_S: Final = 3600
_UNIT_H: Final = 1_000_000
"""A GPU's ``health_cost`` is failures in so many hours."""
_MOST_COST: Final = 1 << 53
"""Costs are less, so that each is exact as a float."""


def pick_gpus(
    state: FleetState, request: Request, cells: Ints, usable: Flags | None = None, like: Ints | None = None
) -> Ints:
    """Return the soundest usable GPUs of each cell, ``gpus_per_node`` a cell, on the same rails if declared.

    They are in the order of rails, or of slots. ``cells``: in topology order, each with enough GPUs. ``usable``: these
    of the fleet; by default the free and admitted ones. ``like``: another host's part of the gang, whose rails are
    preferred.
    """
    if usable is None and state.layout.is_whole(request.gpus_per_node):
        return in_rail_order(state, state.layout.gpus_of_cells(cells))
    gpus = _usable_of(state, request, cells, usable)
    if len(gpus) > len(cells) * request.gpus_per_node:  # else each gives all that it has
        on_rails = picked_on_rails(state, request, cells, gpus, like)
        gpus = _soundest_of(state.layout, request, gpus) if on_rails is None else on_rails
    return in_rail_order(state, gpus)


def _usable_of(state: FleetState, request: Request, cells: Ints, usable: Flags | None) -> Ints:
    gpus = state.layout.gpus_of_cells(cells)
    is_usable = state.tier(request.tier).admitted[gpus] & state.is_free[gpus] if usable is None else usable[gpus]
    found: Ints = gpus[is_usable]
    return found


def _soundest_of(layout: Layout, request: Request, gpus: Ints) -> Ints:
    """Return the soundest GPUs of each cell, by slot."""
    owners = layout.cell_of_gpu[gpus]
    costs = layout.gpu_health_cost[gpus]
    order = np.arange(len(gpus))
    place_in_cell = order - np.searchsorted(owners, owners)
    if costs.any():
        order = np.lexsort((-costs if request.prefers_weak else costs, owners))
    picked: Ints = gpus[np.sort(order[place_in_cell < request.gpus_per_node])]
    return picked


def cell_costs(state: FleetState, request: Request, cells: Ints, usable: Flags | None = None) -> Ints:
    """Return what the request's part of each cell adds, in failures in 1,000,000 hours; less is taken first.

    ``cells``: in topology order; ``usable``: as in ``pick_gpus``.
    """
    costs = np.zeros(len(cells), dtype=np.int64)
    is_weak = state.layout.cell_health_cost[cells] > 0
    if is_weak.any():
        gpus = _soundest_of(state.layout, request, _usable_of(state, request, cells[is_weak], usable))
        owner = cells[is_weak].searchsorted(state.layout.cell_of_gpu[gpus])
        np.add.at(costs, np.flatnonzero(is_weak)[owner], state.layout.gpu_health_cost[gpus])
    return np.negative(costs) if request.prefers_weak else costs


class KeptCosts:
    """The cost of one host's part of each cell, updated from the weak cells that change; 0 if it does not fit.

    Costs are not negative here. ``cell_costs`` of all cells is its oracle in tests.
    """

    __slots__ = ("_request", "_state", "costs", "version")

    def __init__(self, state: FleetState, request: Request) -> None:
        self._state, self._request = state, request
        self.costs: Ints = np.zeros(state.layout.num_cells, dtype=np.int64)
        self.version = 0
        self.follow(np.arange(state.layout.num_cells))

    def follow(self, cells: Ints) -> None:
        """Update the costs of ``cells``, distinct and in order, which have changed."""
        weak = cells[self._state.layout.cell_health_cost[cells] > 0]
        if not len(weak):
            return
        fits = self._state.tier(self._request.tier).counts[weak] >= self._request.gpus_per_node
        after = np.zeros(len(weak), dtype=np.int64)
        after[fits] = np.abs(cell_costs(self._state, self._request, weak[fits]))
        if (after != self.costs[weak]).any():
            self.costs[weak] = after
            self.version += 1


def kept_costs(state: FleetState, request: Request) -> KeptCosts:
    """Return the kept costs. ``state``: laid out for the request's tier."""
    alike = KeptCosts, request.tier, request.gpus_per_node, request.prefers_weak
    return state.kept(alike, lambda: KeptCosts(state, request))


def _failures_per_cost(state: FleetState, request: Request) -> float:
    """Return the expected failures by unit of cost over the expected run time."""
    run_s = state.policy.queue.expected_run_s if request.expected_s is None else request.expected_s
    return run_s / _HOUR_S / _UNIT_H


def expected_losses(
    state: FleetState, request: Request, cells: Ints, usable: Flags | None = None
) -> npt.NDArray[np.float64]:
    """Return the GPU-seconds that the gang is expected to lose by failures of its part of each cell.

    They are 0 if it prefers weak GPUs. A failure costs each of its GPUs what reclaim counts for a victim's restart.
    ``cells``, ``usable``: as in ``cell_costs``.
    """
    if request.prefers_weak or not state.layout.has_weak:
        return np.zeros(len(cells))
    gpu_s = request.nodes * request.gpus_per_node * state.policy.reclaim.restart_cost_s
    costs = cell_costs(state, request, cells, usable).astype(np.float64)
    return costs * (_failures_per_cost(state, request) * gpu_s)


def _graded(state: FleetState, request: Request, costs: Ints) -> Ints:
    """Return the costs in steps of the failures that the policy tolerates."""
    if request.prefers_weak:
        return np.zeros(len(costs), dtype=np.int64)
    steps = costs * _failures_per_cost(state, request) // state.policy.placement.hazard.tolerated_failures
    return np.asarray(steps, dtype=np.int64)


def end_of_first_grade(state: FleetState, request: Request) -> int:
    """Return the least cost that is a step."""
    return _least_cost_of(state.policy.placement.hazard.tolerated_failures, _failures_per_cost(state, request))


@lru_cache(maxsize=1024)
def _least_cost_of(failures: float, per_cost: float) -> int:
    """Return the least cost that comes to so many failures; it is cached, so costs are compared as whole numbers."""
    if _MOST_COST * per_cost < failures:
        return _MOST_COST
    cost = int(failures / per_cost)
    while cost * per_cost < failures:
        cost += 1
    while cost > 0 and (cost - 1) * per_cost >= failures:
        cost -= 1
    return cost


def weakness_of(request: Request, parts: KeptCosts, room: Tally, level: int, homes: Ints) -> Ints | None:
    """Return what a gang on the soundest cells of each of ``homes`` costs; None: nothing in any of them.

    ``homes``: groups of a level. Only groups with too few sound cells are computed. Slices may need weaker cells than
    these.
    """
    if level == room.node_level:  # each home is one cell
        own = parts.costs[homes]
        return (np.negative(own) if request.prefers_weak else own) if own[own.argmax()] else None
    if request.prefers_weak:
        return np.negative(room.weak_cells(parts, level).largest(homes))
    numbers = room.numbers(level)
    fewest_sound = (numbers - room.most_weak(parts, level))[homes]
    if fewest_sound[fewest_sound.argmin()] >= request.nodes:
        return None
    weak = room.weak_cells(parts, level)
    return weak.least(homes, np.maximum(request.nodes - (numbers - weak.numbers)[homes], 0))


def soundest_homes(state: FleetState, request: Request, costs: Ints) -> Ints:
    """Return the indices in ``costs``, one for each home, with the fewest steps that matter."""
    if request.prefers_weak:
        return np.arange(len(costs))
    first: Ints = (costs < end_of_first_grade(state, request)).nonzero()[0]
    if len(first):
        return first
    grades = _graded(state, request, costs)
    least: Ints = (grades == grades.min()).nonzero()[0]
    return least


def steps_of(state: FleetState, request: Request, cells: Ints, usable: Flags) -> Ints:
    """Return the steps of failures that one host of the gang would add on each of these cells; fewer go first."""
    costs = cell_costs(state, request, cells, usable)
    return costs if request.prefers_weak else _graded(state, request, costs * request.nodes)


def soundest(
    state: FleetState, request: Request, parts: KeptCosts | None, cells: Ints, suffices: Callable[[Ints], bool]
) -> Ints:
    """Return ``cells`` without the weakest, as long as the others suffice: a whole gang of weak cells would cost more.

    ``parts``: None if no GPU is less sound than others.
    """
    if parts is None or request.prefers_weak or len(cells) == request.nodes:
        return cells
    costs = parts.costs[cells]
    is_first = costs < -(-end_of_first_grade(state, request) // request.nodes)
    first: Ints = cells[is_first]
    if len(first) == len(cells) or (len(first) and suffices(first)):
        return first
    grades = _graded(state, request, costs * request.nodes)
    for grade in np.unique(grades[~is_first])[:-1]:
        sounder: Ints = cells[grades <= grade]
        if suffices(sounder):
            return sounder
    return cells
