"""The place of one gang: the smallest domain of one cohort that holds it whole, with least left over for no use.

Each gang by itself on a fleet of three racks (the least fragmenting home first, then the tightest):

    rack  free GPUs by host  gang   goes to                   since
    r0    8 8 8 8            1 × 2  r2h2                      its free GPUs are used up
    r1    8 8 8 0            1 × 8  r1h0                      4, 2 and 2 free hosts remain, all in pairs
    r2    8 8 2 0            2 × 8  r2h0 r2h1                 its free hosts are used up
                             3 × 8  r1h0 r1h1 r1h2            its free hosts are used up
                             5 × 8  r1h0 r1h1 r1h2 r2h0 r2h1  no rack holds it: r1 and r2 do, and r0 stays whole

Pure, on counts, the same function for placement, what-if, reclaim and recovery. Ties are broken by best fit, then by
copies of the job's bundle, then by place, so that the same state gives the same answer (I19).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TypeVar

import numpy as np

from scheduler.fleet.fragmentation import least_raising
from scheduler.fleet.tally import Tally, least_of
from scheduler.fleet.topology import NOWHERE, FleetState, Ints, Layout
from scheduler.model import Parts
from scheduler.solve.balance import least_shares
from scheduler.solve.bundle_holders import homes_of_most_holders
from scheduler.solve.health_cost import KeptCosts, kept_costs, pick_gpus, soundest, soundest_homes, weakness_of
from scheduler.solve.host_choice import balance_level, descend, first_of, level_below, unit_below
from scheduler.solve.node_filter import has_labels, known_levels, node_filter_of
from scheduler.solve.placement_rule import PipelineOrder
from scheduler.solve.rail_sets import on_same_rails, room_on_rails
from scheduler.solve.request import Request, request_of
from scheduler.solve.slices import count_by_group, num_in_whole_slices, room_by_group, room_by_numbers

__all__ = [
    "Chosen",
    "Request",
    "could_ever_fit",
    "count_by_group",
    "fitting_cells",
    "fitting_size",
    "has_labels",
    "level_span",
    "most_nodes",
    "most_unrounded",
    "narrowed",
    "parts_of",
    "pick_gpus",
    "place",
    "place_smaller",
    "request_of",
    "room_of",
]


Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A place. ``cells``: one a node, in rank order; ``gpus``: the GPUs of each in turn, in the order of local ranks.

    ``is_whole``: all GPUs of each cell in their order, so that their names need not be gathered.
    """

    cells: Ints
    gpus: Ints
    is_whole: bool = False

    def ranked(self, order: PipelineOrder | None) -> "Chosen":
        """Return the hosts by rank, which are here by place."""
        if order is None:
            return self
        ranks = np.array(order.by_rank(range(len(self.cells))), dtype=np.int64)
        gpus = self.gpus.reshape(len(self.cells), -1)[ranks].ravel()
        return Chosen(self.cells[ranks], gpus, is_whole=self.is_whole)


def most_nodes(state: FleetState, request: Request, counts: Ints | None = None) -> int:
    """Return the most hosts that one home of the request can give, by ``counts`` GPUs a cell; by default the free ones.

    The widest level decides, since each narrower domain is within one of its own. So no size has to be tried. Cells are
    of the tier's own layout, here as in ``place``.
    """
    state = state.for_tier(request.tier)
    span = level_span(state.layout, request)
    if not span:
        return 0
    if counts is None:
        room = _room(state, request)
        if not request.rule.slices:
            return room.most_cells(span[-1])
        return int(room_by_numbers(state.layout, request.rule.slices, room, span[-1]).max(initial=0))
    cells = fitting_cells(state, request, counts)
    return int(room_of(state.layout, request, cells, span[-1]).max(initial=0))


def most_unrounded(state: FleetState, request: Request, counts: Ints, most: int) -> int:
    """Return the most hosts without rounding to slices; the places at the slices' levels must be known all the same.

    ``most``: the most hosts with rounding.
    """
    if not request.rule.slices:
        return most
    in_slices = fitting_cells(state, request, counts)
    known = np.zeros_like(counts)
    known[in_slices] = counts[in_slices]
    return most_nodes(state, request.unsliced(), known)


def narrowed(state: FleetState, request: Request) -> Request:
    """Return the request with the narrowest level required at which it fits by counts, if a level is preferred."""
    layout = state.for_tier(request.tier).layout
    if request.preferred is None or request.nodes == 1:
        return request
    names = {number: name for name, number in layout.level_of.items()}
    of_names = [names[level] for level in level_span(layout, request)[:-1] if level in names]
    narrower = (replace(request, required=name) for name in of_names)
    return next((one for one in narrower if most_nodes(state, one) >= request.nodes), request)


def could_ever_fit(state: FleetState, request: Request) -> bool:
    """Return whether the request would fit with every GPU idle that its tier admits."""
    most = state.lasting.get(request.family)
    if most is None and request.avoid_nodes and not request.rule.slices:
        num_avoided = sum(
            len(state.for_tier(request.tier).layout.cells_of_node.get(one, ())) for one in request.avoid_nodes
        )
        if could_ever_fit(state, request.avoiding(frozenset()).sized(request.nodes + num_avoided)):
            return True
    if most is None:
        own = state.for_tier(request.tier)
        most = state.lasting[request.family] = most_nodes(own, request, own.tier(request.tier).admitted_counts)
    return most >= request.nodes


def place(state: FleetState, request: Request, within: Ints | None = None, *, in_order: bool = False) -> Chosen | None:
    """Return the best place for the whole gang, or None (I5). The state is unchanged. ``within``: on these cells alone.

    ``in_order``: the first of the soundest homes of the narrowest level, and its first hosts, whatever they leave over.
    Then other placements outside the place do not change the choice (except for even spreads, among equal ones).
    """
    state = state.for_tier(request.tier)
    for wish in request.rule.preferred:
        chosen = _place(state, request.with_preferences(wish), within, in_order=in_order)
        if chosen is not None:
            return chosen.ranked(wish.order)
    return _place(state, request, within, in_order=in_order)


def place_smaller(state: FleetState, request: Request, *, in_order: bool = False) -> Chosen | None:
    """Return a place for an elastic gang with fewer hosts than requested: as many as there are, at least its fewest."""
    smaller = fitting_size(state, request)
    return None if smaller is None else place(state, smaller, in_order=in_order)


def fitting_size(state: FleetState, request: Request) -> Request | None:
    """Return the size that ``place_smaller`` uses; None if the request has one size, or not even its fewest fit."""
    if request.min_nodes is None or request.min_nodes == request.nodes:
        return None
    num_nodes = min(most_nodes(state, request), request.nodes)
    return None if num_nodes < request.min_nodes else request.sized(num_nodes)


def _place(state: FleetState, request: Request, within: Ints | None, *, in_order: bool) -> Chosen | None:
    layout = state.layout
    levels = [level for level in level_span(layout, request) if layout.largest[level] >= request.nodes]
    if not levels:
        return None
    room = _room(state, request, within)
    # The widest level has the largest groups: a gang that fits in none of them fails by one count.
    if len(levels) > 1 and room.most_cells(levels[-1]) < request.nodes:
        return None
    parts = kept_costs(state, request) if layout.has_weak else None
    for level in levels:
        fitting = room if in_order else room_on_rails(state, request, room, level)
        group = _best_group(state, fitting, request, level, parts, in_order=in_order)
        if group is not None:
            suffices = partial(_suffices, state, request, level)
            inside = soundest(state, request, parts, room.cells_in(level, group), suffices)
            inside = inside if in_order else on_same_rails(state, request, inside, suffices)
            choose = first_of if in_order and request.rule.balance is None else descend
            cells = choose(state, request, level, inside, None if parts is None else parts.costs)
            gpus = pick_gpus(state, request, cells)
            return Chosen(cells, gpus, is_whole=state.rails.are_by_slot and len(gpus) == layout.num_gpus_of(cells))
    return None


def _suffices(state: FleetState, request: Request, level: int, cells: Ints) -> bool:
    """Return whether ``cells`` of one group of ``level`` hold the gang."""
    rule, layout = request.rule, state.layout
    num_usable = num_in_whole_slices(layout, rule.slices, cells, level) if rule.slices else len(cells)
    return num_usable >= request.nodes


def _room(state: FleetState, request: Request, within: Ints | None = None) -> Tally:
    """Return the cells for one host's part, without nodes to avoid and nodes that the filter excludes."""
    fence = node_filter_of(state, request)
    if within is None:
        room = state.tally(request.tier, request.gpus_per_node, fence)
    else:
        counts = np.zeros(state.layout.num_cells, dtype=np.int64)
        counts[within] = state.tier(request.tier).counts[within]
        room = Tally(state.layout, counts, request.gpus_per_node, fence.excluded(state))
    avoided = [cell for node_id in request.avoid_nodes for cell in state.layout.cells_of_node.get(node_id, ())]
    return room.without(np.array(avoided, dtype=np.int64)) if avoided else room


def level_span(layout: Layout, request: Request) -> Sequence[int]:
    """Return the levels to try, narrowest first. Empty if a level that it asks for does not exist in this fleet."""
    top = 0 if request.required is None else layout.level(request.required)
    if top is None or None in map(layout.level, request.rule.levels):
        return ()
    preferred = None if request.preferred is None else layout.level(request.preferred)
    is_open = request.nodes == 1 or preferred is None
    start = layout.node_level if is_open or preferred is None else max(preferred, top)
    return range(start, top - 1, -1)


def fitting_cells(state: FleetState, request: Request, counts: Ints) -> Ints:
    """Return the cells that can give one node's part, by ``counts`` GPUs a cell, with known places where needed."""
    fits = counts >= request.gpus_per_node
    for node_id in request.avoid_nodes:
        fits[list(state.layout.cells_of_node.get(node_id, ()))] = False
    if any(state.layout.level(name) is None for name in known_levels(request)):
        return np.zeros(0, dtype=np.int64)
    fits[node_filter_of(state, request).excluded(state)] = False
    return np.flatnonzero(fits)


def room_of(layout: Layout, request: Request, cells: Ints, level: int) -> Ints:
    """Return the hosts that each group of ``level`` has for the request, of ``cells`` that can give one's part."""
    return room_by_group(layout, request.rule.slices, cells, level)


def _best_group(
    state: FleetState, room: Tally, request: Request, level: int, parts: KeptCosts | None, *, in_order: bool
) -> int | None:
    """Return the best home, or None if none holds the gang.

    First come far fewer expected failures, then the most even spread if one is asked for; then the tightest, except for
    ``in_order``; then health, copies of its bundle, and place.
    """
    layout = state.layout
    num_nodes = None if level == layout.node_level else room.num_cells(level)[:-1]
    if num_nodes is not None and request.rule.slices:
        num_nodes = room_by_numbers(layout, request.rule.slices, room, level)
    homes = (room.usable if num_nodes is None else num_nodes >= request.nodes).nonzero()[0]
    if not len(homes):
        return None
    weakness = None if parts is None or len(homes) == 1 else weakness_of(request, parts, room, level, homes)
    enough = homes if weakness is None else homes[soundest_homes(state, request, weakness)]
    if request.rule.balance is not None and len(enough) > 1:
        enough = least_of(enough, -_least_shares(layout, request, room, level, enough))
    if not in_order and len(enough) > 1:
        enough = _tightest(state, room, request, level, enough, num_nodes)
    if weakness is not None and len(enough) > 1:
        enough = least_of(enough, weakness[homes.searchsorted(enough)])
    if request.bundle_holders and not in_order and len(enough) > 1:
        enough = homes_of_most_holders(layout, room, request, level, enough)
    return int(enough[0])


def _tightest(
    state: FleetState, room: Tally, request: Request, level: int, homes: Ints, num_nodes: Ints | None
) -> Ints:
    """Return the best of these groups of ``level``, two at least, by what they leave over.

    First come groups where fragments grow least, then with fewest fitting nodes (``num_nodes`` of each group; None for
    single nodes), then with fewest GPUs left over, then in the fullest wider domains.
    """
    layout = state.layout
    if state.mix:
        homes = least_raising(state, request, room, level, homes)
    if num_nodes is not None:
        homes = least_of(homes, num_nodes[homes])
    if len(homes) > 1 and (request.rule.slices or not layout.is_whole(request.gpus_per_node)):  # else by nodes
        homes = least_of(homes, (room.usable if num_nodes is None else room.num_gpus(level))[homes])
    for wider in range(level - 1, -1, -1):
        if len(homes) == 1:
            break
        around = layout.around(level, wider)[homes]
        num_around = room.num_cells(wider)[around]
        if layout.has_unknown:  # where the wider domain is unknown, nothing is known to stand around
            num_around[around == NOWHERE] = 0
        homes = least_of(homes, num_around)
    return homes


def _least_shares(layout: Layout, request: Request, room: Tally, level: int, homes: Ints) -> Ints:
    """Return the least share of an even spread over its level in each of these groups of ``level``."""
    balanced = balance_level(layout, request)
    below = level_below(balanced, level)
    if below != balanced:
        return np.full(len(homes), request.nodes, dtype=np.int64)
    rooms = room_by_numbers(layout, request.rule.slices, room, below)
    return least_shares(rooms, layout.nesting(below, level), homes, request.nodes, unit_below(layout, request, below))


def parts_of(state: FleetState, tier: str, chosen: Chosen) -> Parts:
    layout = state.for_tier(tier).layout
    if chosen.is_whole:
        return _named(layout.whole_parts, chosen.cells)
    uuids, width = _named(layout.uuids, chosen.gpus), len(chosen.gpus) // len(chosen.cells)
    return tuple(zip(_named(layout.cell_node, chosen.cells), zip(*[iter(uuids)] * width, strict=True), strict=True))


def _named(names: Sequence[Name], numbers: Ints) -> tuple[Name, ...]:
    """Return the names of these numbers, at least one. The last number is repeated, since one name makes no tuple."""
    found: tuple[Name, ...] = itemgetter(*numbers.tolist(), -1)(names)
    return found[:-1]
