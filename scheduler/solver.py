"""Where one gang goes: the smallest domain of one cohort that holds it whole, with the least left over.

Pure best fit on counts, the same function for placement, what-if, reclaim and recovery. Ties are broken by place, so
that the same state gives the same answer (I19).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.domain.ids import NodeId
from scheduler.model import Parts, WaitingJob
from scheduler.tally import Tally
from scheduler.topology import NOWHERE, FleetState, Ints, Layout


@dataclass(frozen=True, slots=True)
class Request:
    """One class of request: jobs with equal requests fit or fail together.

    ``min_nodes``: of an elastic one, which takes fewer than ``nodes`` where so many do not fit. ``closing_ms``: it
    would still run as nodes close that do so then or before (``FleetState.last_closing_ms``): it does not go there.
    """

    tier: str
    nodes: int
    gpus_per_node: int
    required: str | None = None
    preferred: str | None = None
    avoid_nodes: frozenset[NodeId] = frozenset()
    prefers_weak: bool = False
    min_nodes: int | None = None
    closing_ms: int | None = None
    may_use_spares: bool = False

    @property
    def fewest_nodes(self) -> int:
        return self.nodes if self.min_nodes is None else self.min_nodes

    def sized(self, nodes: int) -> "Request":
        return self if nodes == self.nodes else replace(self, nodes=nodes)

    def at_least(self) -> "Request":
        """The smallest that would do."""
        return self.sized(self.fewest_nodes)


@dataclass(frozen=True, slots=True)
class Chosen:
    """``cells``: one a node, in topology order, thus in rank order; ``gpus``: the GPUs of each in turn."""

    cells: Ints
    gpus: Ints


def request_of(job: WaitingJob, *, is_reclaimable: bool = False, closing_ms: int | None = None) -> Request:
    """A small job of a reclaimable tier prefers weak GPUs: a fault costs least there."""
    return Request(
        tier=job.tier,
        nodes=job.nodes,
        gpus_per_node=job.gpus_per_node,
        required=job.required_level,
        preferred=job.preferred_level,
        avoid_nodes=job.avoid_nodes,
        prefers_weak=is_reclaimable and job.nodes == 1,
        min_nodes=job.min_nodes,
        closing_ms=closing_ms,
    )


def most_nodes(state: FleetState, request: Request, counts: Ints | None = None) -> int:
    """The most hosts that one home of the request can give, by ``counts`` GPUs a cell; of what is free by default.

    The widest level decides: each narrower domain lies in one of its own. So no size has to be tried. Cells are those
    of the tier's own layout, here as in ``place``.
    """
    state = state.for_tier(request.tier)
    span = level_span(state.layout, request)
    if not span:
        return 0
    if counts is None:
        return _room(state, request).most_cells(span[-1])
    cells = fitting_cells(state, request, counts)
    return int(count_by_group(state.layout, cells, span[-1]).max(initial=0))


def could_ever_fit(state: FleetState, request: Request) -> bool:
    """Whether the request would fit with every GPU idle that its tier admits."""
    state = state.for_tier(request.tier)
    return most_nodes(state, request, state.tier(request.tier).admitted_counts) >= request.nodes


def place(state: FleetState, request: Request, within: Ints | None = None) -> Chosen | None:
    """The best place for the whole gang, or None (I5). The state is not changed. ``within``: on these cells alone."""
    state = state.for_tier(request.tier)
    span = level_span(state.layout, request)
    room = _room(state, request, within)
    if not span or room.most_cells(span[-1]) < request.nodes:
        return None
    for level in span:
        if state.layout.largest[level] < request.nodes:
            continue
        group = _best_group(state.layout, room, request, level)
        if group is not None:
            cells = np.sort(_descend(state, request, level, room.cells_in(level, group), request.nodes))
            return Chosen(cells, pick_gpus(state, request, cells))
    return None


def _room(state: FleetState, request: Request, within: Ints | None = None) -> Tally:
    """Where one host's part may be: not on hosts to avoid, that close too soon, or whose required domain is unknown."""
    if within is None:
        room = state.tally(request.tier, request.gpus_per_node)
    else:
        counts = np.zeros(state.layout.num_cells, dtype=np.int64)
        counts[within] = state.tier(request.tier).counts[within]
        room = Tally(state.layout, counts, request.gpus_per_node)
    cells_of = state.layout.cells_of_node
    out = [cell for node_id in request.avoid_nodes for cell in cells_of.get(node_id, ())]
    if request.closing_ms is not None:
        out += np.flatnonzero(state.cell_closes_ms <= request.closing_ms).tolist()
    required = None if request.required is None else state.layout.level(request.required)
    unknown = state.layout.unknown_cells[required] if required is not None else ()
    if not out and not len(unknown):
        return room
    return room.without(np.array(sorted({*out, *unknown}), dtype=np.int64))


def level_span(layout: Layout, request: Request) -> Sequence[int]:
    """The levels to try, narrowest first. Empty where the required level is none of this fleet's."""
    top = 0 if request.required is None else layout.level(request.required)
    if top is None:
        return ()
    preferred = None if request.preferred is None else layout.level(request.preferred)
    is_open = request.nodes == 1 or preferred is None
    start = layout.node_level if is_open or preferred is None else max(preferred, top)
    return range(start, top - 1, -1)


def fitting_cells(state: FleetState, request: Request, counts: Ints) -> Ints:
    """Cells that can give one node's part, by ``counts`` GPUs a cell, and whose place is known where that matters."""
    fits = counts >= request.gpus_per_node
    for node_id in request.avoid_nodes:
        fits[list(state.layout.cells_of_node.get(node_id, ()))] = False
    if request.closing_ms is not None:
        fits &= state.cell_closes_ms > request.closing_ms
    if request.required is not None:
        required = state.layout.level(request.required)
        if required is None:
            return np.zeros(0, dtype=np.int64)
        fits &= state.layout.groups[required] != NOWHERE
    return np.flatnonzero(fits)


def count_by_group(layout: Layout, cells: Ints, level: int) -> Ints:
    groups = layout.groups[level][cells]
    return np.bincount(groups[groups != NOWHERE], minlength=layout.num_groups[level])


def _best_group(layout: Layout, room: Tally, request: Request, level: int) -> int | None:
    """Fewest fitting nodes, then fewest GPUs left over, then the fullest surroundings, then health, then place."""
    is_node = level == layout.node_level
    sums = None if is_node else room.sums(level)
    enough = np.flatnonzero(room.usable if sums is None else sums.cells[:-1] >= request.nodes)
    if not len(enough):
        return None
    if sums is not None:
        enough = _least(enough, sums.cells[enough])
    if len(enough) > 1:
        enough = _least(enough, (room.usable if sums is None else sums.gpus)[enough])
    for wider in range(level - 1, -1, -1):
        if len(enough) == 1:
            break
        around = layout.groups[wider][layout.first_cell[level][enough]]
        # Where the wider domain is unknown, nothing is known to stand around.
        enough = _least(enough, np.where(around == NOWHERE, 0, room.sums(wider).cells[around]))
    if len(enough) > 1:
        cost = (layout.cell_health_cost if sums is None else sums.health_cost)[enough]
        enough = _least(enough, -cost if request.prefers_weak else cost)
    return int(enough[0])


def _least(groups: Ints, keys: npt.NDArray[Any]) -> Ints:
    least: Ints = groups[keys == keys.min()]
    return least


def _descend(state: FleetState, request: Request, level: int, cells: Ints, nodes: int) -> Ints:
    """``nodes`` of ``cells``, which lie in one domain of ``level``: the fewest domains below, the last by best fit."""
    if len(cells) == nodes:
        return cells
    below = level + 1
    if below >= state.layout.node_level:
        cost = state.layout.cell_health_cost[cells]
        keys = (cells, -cost if request.prefers_weak else cost, state.tier(request.tier).counts[cells])
        fullest: Ints = cells[np.lexsort(keys)[:nodes]]
        return fullest
    groups = state.layout.groups[below][cells]
    domain = groups - groups.min()
    sizes = np.bincount(domain)
    largest_first = np.argsort(-sizes, kind="stable")
    reached = np.cumsum(sizes[largest_first])
    num_whole = int(np.searchsorted(reached, nodes))
    rest = nodes - (int(reached[num_whole - 1]) if num_whole else 0)
    others = largest_first[num_whole:]
    enough = others[sizes[others] >= rest]
    last = enough[np.argmin(sizes[enough])]
    is_whole = np.zeros(len(sizes), dtype=np.bool_)
    is_whole[largest_first[:num_whole]] = True
    whole = cells[is_whole[domain]]
    return np.concatenate([whole, _descend(state, request, below, cells[domain == last], rest)])


def pick_gpus(state: FleetState, request: Request, cells: Ints) -> Ints:
    """The first usable GPUs of each cell by slot, ``gpus_per_node`` a cell; ``cells`` in topology order."""
    layout = state.layout
    gpus = layout.gpus_of_cells(cells)
    gpus = gpus[state.tier(request.tier).admitted[gpus] & state.is_free[gpus]]
    owners = layout.cell_of_gpu[gpus]
    place_in_cell = np.arange(len(gpus)) - np.searchsorted(owners, owners)
    picked: Ints = gpus[place_in_cell < request.gpus_per_node]
    return picked


def parts_of(state: FleetState, tier: str, chosen: Chosen) -> Parts:
    layout = state.for_tier(tier).layout
    uuids = [layout.uuids[index] for index in chosen.gpus.tolist()]
    width = len(uuids) // len(chosen.cells)
    return tuple(
        (layout.cell_node[cell], tuple(uuids[rank * width : (rank + 1) * width]))
        for rank, cell in enumerate(chosen.cells.tolist())
    )
