"""How health weighs: a gang's cost in a place is the failures that its GPUs are expected to add while it runs.

A place with far fewer is taken before one that leaves less over; what differs by little only breaks ties. A small job
of a reclaimable tier seeks weak GPUs instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.request import Request
from scheduler.topology import NOWHERE, Flags, FleetState, Ints

_HOUR_S: Final = 3600
_UNIT_H: Final = 1_000_000
"""A GPU's ``health_cost`` is failures in so many hours."""


def pick_gpus(state: FleetState, request: Request, cells: Ints, usable: Flags | None = None) -> Ints:
    """The soundest usable GPUs of each cell, by slot, ``gpus_per_node`` a cell; ``cells`` in topology order.

    ``usable``: these of the fleet; by default what is free and admitted.
    """
    layout = state.layout
    gpus = layout.gpus_of_cells(cells)
    gpus = gpus[state.tier(request.tier).admitted[gpus] & state.is_free[gpus] if usable is None else usable[gpus]]
    if len(gpus) == len(cells) * request.gpus_per_node:
        return gpus  # each gives all that it has
    owners = layout.cell_of_gpu[gpus]
    costs = layout.gpu_health_cost[gpus]
    order = np.arange(len(gpus))
    place_in_cell = order - np.searchsorted(owners, owners)
    if costs.any():
        order = np.lexsort((-costs if request.prefers_weak else costs, owners))
    picked: Ints = gpus[np.sort(order[place_in_cell < request.gpus_per_node])]
    return picked


def cell_costs(state: FleetState, request: Request, cells: Ints, usable: Flags | None = None) -> Ints:
    """What the request's part of each cell adds, in failures in 1,000,000 hours; less is taken first.

    ``cells``: in topology order; ``usable``: as ``pick_gpus`` has it.
    """
    costs = np.zeros(len(cells), dtype=np.int64)
    is_weak = state.layout.cell_health_cost[cells] > 0
    if is_weak.any():
        gpus = pick_gpus(state, request, cells[is_weak], usable)
        _, owner = np.unique(state.layout.cell_of_gpu[gpus], return_inverse=True)
        np.add.at(costs, np.flatnonzero(is_weak)[owner], state.layout.gpu_health_cost[gpus])
    return np.negative(costs) if request.prefers_weak else costs


def _graded(state: FleetState, request: Request, costs: Ints) -> Ints:
    """In steps of what the policy tolerates, over the time that the request is believed to run."""
    if request.prefers_weak:
        return np.zeros(len(costs), dtype=np.int64)
    run_s = state.policy.queue.expected_run_s if request.expected_s is None else request.expected_s
    failures = costs * (run_s / _HOUR_S / _UNIT_H)
    return np.asarray(failures // state.policy.placement.hazard.tolerated_failures, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Weakness:
    """Of each group of a level: what a gang on its soundest cells costs, and the same in steps that matter."""

    cost: Ints
    grade: Ints


def weakness_of(state: FleetState, request: Request, cells: Ints, level: int) -> Weakness:
    """``cells``: those that can give one host's part, in topology order. Slices may ask for weaker ones than these."""
    groups, num_groups = state.layout.groups[level][cells], state.layout.num_groups[level]
    costs = cell_costs(state, request, cells)
    total = np.zeros(num_groups, dtype=np.int64)
    is_known = groups != NOWHERE
    if request.prefers_weak:
        np.minimum.at(total, groups[is_known], costs[is_known])
    elif costs.any():
        is_weak = is_known & (costs > 0)
        num_sound = np.bincount(groups[is_known & ~is_weak], minlength=num_groups)
        weak_groups, weak_costs = groups[is_weak], costs[is_weak]
        order = np.lexsort((weak_costs, weak_groups))
        weak_groups, weak_costs = weak_groups[order], weak_costs[order]
        place_in_group = np.arange(len(order)) - np.searchsorted(weak_groups, weak_groups)
        is_needed = place_in_group < request.nodes - num_sound[weak_groups]
        np.add.at(total, weak_groups[is_needed], weak_costs[is_needed])
    return Weakness(total, _graded(state, request, total))


def steps_of(state: FleetState, request: Request, cells: Ints, usable: Flags) -> Ints:
    """As what one host of the gang goes to these cells: the fewer failures its part would add, the earlier."""
    costs = cell_costs(state, request, cells, usable)
    return costs if request.prefers_weak else _graded(state, request, costs * request.nodes)


def soundest(state: FleetState, request: Request, cells: Ints, suffices: Callable[[Ints], bool]) -> Ints:
    """Those of ``cells`` without the weakest, as far as what is left suffices: a whole gang of such would cost more."""
    if not state.layout.has_weak:
        return cells
    costs = cell_costs(state, request, cells)
    if request.prefers_weak or not costs.any():
        return cells
    grades = _graded(state, request, costs * request.nodes)
    for grade in np.unique(grades)[:-1]:
        sounder: Ints = cells[grades <= grade]
        if suffices(sounder):
            return sounder
    return cells
