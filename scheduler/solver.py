"""Where one gang goes: the smallest domain of one cohort that holds it whole, with the least left over.

Pure best fit on counts, the same function for placement, what-if, reclaim and recovery. Ties are broken by place, so
that the same state gives the same answer (I19).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.balance import even_shares, least_share
from scheduler.model import Parts
from scheduler.request import Request, request_of
from scheduler.slices import count_by_group, in_whole_slices, room_by_group
from scheduler.soundness import cell_costs, pick_gpus, soundest, weakness_of
from scheduler.tally import Tally
from scheduler.topology import NOWHERE, Flags, FleetState, Ints, Layout

__all__ = [
    "Chosen",
    "Request",
    "could_ever_fit",
    "count_by_group",
    "fitting_cells",
    "has_labels",
    "level_span",
    "most_nodes",
    "parts_of",
    "pick_gpus",
    "place",
    "request_of",
    "room_of",
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """``cells``: one a node, in topology order, thus in rank order; ``gpus``: the GPUs of each in turn."""

    cells: Ints
    gpus: Ints


def most_nodes(state: FleetState, request: Request, counts: Ints | None = None) -> int:
    """The most hosts that one home of the request can give, by ``counts`` GPUs a cell; of what is free by default.

    The widest level decides: each narrower domain lies in one of its own. So no size has to be tried. Cells are those
    of the tier's own layout, here as in ``place``.
    """
    state = state.for_tier(request.tier)
    span = level_span(state.layout, request)
    if not span:
        return 0
    if counts is None and not request.rule.slices:
        return _room(state, request).most_cells(span[-1])
    cells = _room(state, request).cells if counts is None else fitting_cells(state, request, counts)
    return int(room_of(state.layout, request, cells, span[-1]).max(initial=0))


def could_ever_fit(state: FleetState, request: Request) -> bool:
    """Whether the request would fit with every GPU idle that its tier admits."""
    state = state.for_tier(request.tier)
    return most_nodes(state, request, state.tier(request.tier).admitted_counts) >= request.nodes


def place(state: FleetState, request: Request, within: Ints | None = None) -> Chosen | None:
    """The best place for the whole gang, or None (I5). The state is not changed. ``within``: on these cells alone."""
    state = state.for_tier(request.tier)
    chosen = _place(state, request.wishing(), within) if request.rule.wished else None
    return chosen or _place(state, request, within)


def _place(state: FleetState, request: Request, within: Ints | None) -> Chosen | None:
    span = level_span(state.layout, request)
    room = _room(state, request, within)
    if not span or room.most_cells(span[-1]) < request.nodes:
        return None
    for level in span:
        if state.layout.largest[level] < request.nodes:
            continue
        group = _best_group(state, room, request, level)
        if group is not None:
            suffices = partial(_suffices, state, request, level, group)
            inside = soundest(state, request, room.cells_in(level, group), suffices)
            cells = np.sort(_descend(state, request, level, inside, request.nodes))
            return Chosen(cells, pick_gpus(state, request, cells))
    return None


def _suffices(state: FleetState, request: Request, level: int, group: int, cells: Ints) -> bool:
    return bool(room_of(state.layout, request, cells, level)[group] >= request.nodes)


def _room(state: FleetState, request: Request, within: Ints | None = None) -> Tally:
    """Where one host's part may be: not on hosts to avoid, that close too soon, of other labels, of unknown place."""
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
    if request.rule.labels:
        out += np.flatnonzero(~has_labels(state.layout, request)).tolist()
    for level in map(state.layout.level, _known_levels(request)):
        out += [] if level is None else state.layout.unknown_cells[level].tolist()
    return room.without(np.unique(np.array(out, dtype=np.int64))) if out else room


def _known_levels(request: Request) -> Sequence[str]:
    """Those at which the place of its hosts has to be known."""
    return request.rule.levels if request.required is None else (request.required, *request.rule.levels)


def level_span(layout: Layout, request: Request) -> Sequence[int]:
    """The levels to try, narrowest first. Empty where a level that it asks for is none of this fleet's."""
    top = 0 if request.required is None else layout.level(request.required)
    if top is None:
        return ()
    if any(layout.level(level) is None for level in request.rule.levels):
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
    if request.rule.labels:
        fits &= has_labels(state.layout, request)
    for name in _known_levels(request):
        level = state.layout.level(name)
        if level is None:
            return np.zeros(0, dtype=np.int64)
        fits &= state.layout.groups[level] != NOWHERE
    return np.flatnonzero(fits)


def has_labels(layout: Layout, request: Request) -> Flags:
    """The cells on whose nodes the request may be by their labels."""
    rule = request.rule.labels
    if rule not in layout.admitted_by:
        admitted = np.array([rule.admits(labels) for labels in layout.label_sets], dtype=np.bool_)
        layout.admitted_by[rule] = admitted[layout.cell_label_set]
    return layout.admitted_by[rule]


def room_of(layout: Layout, request: Request, cells: Ints, level: int) -> Ints:
    """The hosts that each group of ``level`` has for the request, of ``cells`` that can give one's part."""
    return room_by_group(layout, request.rule.slices, cells, level)


def _best_group(state: FleetState, room: Tally, request: Request, level: int) -> int | None:
    """Far fewer expected failures first, then the most even spread where that is asked for; then fewest fitting nodes,
    then fewest GPUs left over, then the fullest surroundings, then health, then place.
    """
    layout = state.layout
    is_node = level == layout.node_level
    sums = None if is_node else room.sums(level)
    num_nodes = None if sums is None else sums.cells[:-1]
    if num_nodes is not None and request.rule.slices:
        num_nodes = room_of(layout, request, room.cells, level)
    enough = np.flatnonzero(room.usable if num_nodes is None else num_nodes >= request.nodes)
    if not len(enough):
        return None
    weakness = weakness_of(state, request, room.cells, level) if layout.has_weak and len(enough) > 1 else None
    if weakness is not None:
        enough = _least(enough, weakness.grade[enough])
    if request.rule.balance is not None:
        enough = _least(enough, -_least_shares(layout, request, room.cells, level, enough))
    if num_nodes is not None:
        enough = _least(enough, num_nodes[enough])
    if len(enough) > 1:
        enough = _least(enough, (room.usable if sums is None else sums.gpus)[enough])
    for wider in range(level - 1, -1, -1):
        if len(enough) == 1:
            break
        around = layout.groups[wider][layout.first_cell[level][enough]]
        # Where the wider domain is unknown, nothing is known to stand around.
        enough = _least(enough, np.where(around == NOWHERE, 0, room.sums(wider).cells[around]))
    return int((enough if weakness is None else _least(enough, weakness.cost[enough]))[0])


def _least(groups: Ints, keys: npt.NDArray[Any]) -> Ints:
    least: Ints = groups[keys == keys.min()]
    return least


def _least_shares(layout: Layout, request: Request, cells: Ints, level: int, homes: Ints) -> Ints:
    """The least share that an even spread over its level has in each of these groups of ``level``."""
    below = _level_below(layout, request, level)
    if below != _balance_level(layout, request):
        return np.full(len(homes), request.nodes, dtype=np.int64)
    rooms = room_of(layout, request, cells, below)
    around = layout.groups[level][layout.first_cell[below]]
    unit = _unit(layout, request, below)
    shares = [least_share(rooms[around == home], request.nodes, unit) for home in homes]
    return np.array(shares, dtype=np.int64)


def _balance_level(layout: Layout, request: Request) -> int | None:
    return None if request.rule.balance is None else layout.level(request.rule.balance)


def _level_below(layout: Layout, request: Request, level: int) -> int:
    """Over whose domains a gang is divided within a domain of ``level``."""
    balanced = _balance_level(layout, request)
    return balanced if balanced is not None and balanced > level else level + 1


def _unit(layout: Layout, request: Request, level: int) -> int:
    """The hosts of the widest slice that lies within the domains of ``level``."""
    inside = [one.nodes for one in request.rule.slices if (layout.level(one.level) or 0) >= level]
    return max(inside, default=1)


def _descend(state: FleetState, request: Request, level: int, cells: Ints, nodes: int) -> Ints:
    """``nodes`` of ``cells``, which lie in one domain of ``level``: the fewest domains below, the last by best fit;
    evenly over those of the level that it asks for.
    """
    if len(cells) == nodes:
        return cells
    layout = state.layout
    below = _level_below(layout, request, level)
    if below >= layout.node_level:
        keys = (cells, cell_costs(state, request, cells), state.tier(request.tier).counts[cells])
        fullest: Ints = cells[np.lexsort(keys)[:nodes]]
        return fullest
    groups = layout.groups[below][cells]
    domain = groups - groups.min()
    rooms = sizes = np.bincount(domain)
    if request.rule.slices:
        is_whole = np.isin(cells, in_whole_slices(layout, request.rule.slices, cells, below))
        rooms = np.bincount(domain[is_whole], minlength=len(sizes))
    is_balanced = below == _balance_level(layout, request)
    shares = even_shares(rooms, nodes, _unit(layout, request, below)) if is_balanced else _fewest(rooms, sizes, nodes)
    parts = [cells[(shares == sizes)[domain]]]
    parts += [
        _descend(state, request, below, cells[domain == index], int(shares[index]))
        for index in np.flatnonzero((shares > 0) & (shares < sizes))
    ]
    return np.concatenate(parts)


def _fewest(rooms: Ints, sizes: Ints, nodes: int) -> Ints:
    """What each domain gives, where as few as can be are used: the largest whole, of the last the tightest.

    ``rooms``: hosts in whole slices; of equal ones that of fewer hosts (``sizes``) is taken, which leaves fewest over.
    """
    shares = np.zeros(len(rooms), dtype=np.int64)
    largest_first = np.lexsort((sizes, -rooms))
    reached = np.cumsum(rooms[largest_first])
    num_whole = int(np.searchsorted(reached, nodes))
    shares[largest_first[:num_whole]] = rooms[largest_first[:num_whole]]
    rest = nodes - (int(reached[num_whole - 1]) if num_whole else 0)
    others = largest_first[num_whole:]
    enough = others[rooms[others] >= rest]
    shares[enough[np.lexsort((sizes[enough], rooms[enough]))[0]]] = rest
    return shares


def parts_of(state: FleetState, tier: str, chosen: Chosen) -> Parts:
    layout = state.for_tier(tier).layout
    uuids = [layout.uuids[index] for index in chosen.gpus.tolist()]
    width = len(uuids) // len(chosen.cells)
    return tuple(
        (layout.cell_node[cell], tuple(uuids[rank * width : (rank + 1) * width]))
        for rank, cell in enumerate(chosen.cells.tolist())
    )
