"""The rails that a gang takes if it uses a part of its hosts' GPUs: the same on every host where possible.

In a rail-optimised network (as in NVIDIA's DGX SuperPOD reference architecture) GPUs of equal rail reach each other
over one switch, others over the spine. This is a preference: it comes after the level of the gang's home and the health
of its GPUs, and no job waits for it. Sets of lanes are chosen as by a buddy allocator, so that aligned blocks of rails
stay whole.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate, combinations, islice
from math import comb
from typing import Final

import numpy as np

from scheduler.fleet.rails import Rails, lane_sets
from scheduler.fleet.tally import Tally
from scheduler.fleet.topology import NOWHERE, Flags, FleetState, Ints
from scheduler.solve.request import Request
from scheduler.solve.slices import room_by_group

TABLE_LANES: Final = 16
"""Most lanes of a set that is numbered by a table of all possible sets."""
MOST_SETS: Final = 128
"""Most sets of lanes that are tried; for 8 lanes these are all."""


class KeptLanes:
    """The lanes, by cell, of sound GPUs that the tier can have now, updated from the cells that change.

    A weak GPU is on no lane: health comes before rails.
    """

    __slots__ = ("_rails", "_state", "_tier", "lanes")

    def __init__(self, state: FleetState, tier: str, rails: Rails) -> None:
        self._state, self._tier, self._rails = state, tier, rails
        self.lanes: Ints = np.zeros(state.layout.num_cells, dtype=np.int64)
        self.follow(np.arange(state.layout.num_cells))

    def follow(self, cells: Ints) -> None:
        """Update the lanes of ``cells``, distinct and in order, which have changed."""
        state = self._state
        gpus = state.layout.gpus_of_cells(cells)
        gpus = gpus[
            state.tier(self._tier).admitted[gpus] & state.is_free[gpus] & (state.layout.gpu_health_cost[gpus] == 0)
        ]
        owners = cells.searchsorted(state.layout.cell_of_gpu[gpus])
        self.lanes[cells] = lane_sets(self._rails, gpus, owners, len(cells))


def kept_lanes(state: FleetState, tier: str, rails: Rails) -> Ints:
    """Return the kept lanes. ``state``: laid out for the tier."""
    return state.kept((KeptLanes, tier), lambda: KeptLanes(state, tier, rails)).lanes


def room_on_rails(state: FleetState, request: Request, room: Tally, level: int) -> Tally:
    """Return ``room`` in the groups of ``level`` in which the gang's hosts can have the same rails.

    If there is no such group, it is all of ``room``.
    """
    rails = state.rails
    if not _do_rails_matter(state, request):
        return room
    layout, cells = state.layout, room.cells
    cells = cells[layout.groups[level][cells] != NOWHERE]
    if not len(cells):
        return room
    lanes, groups = kept_lanes(state, request.tier, rails)[cells], layout.groups[level][cells]
    distinct, which = _distinguished(lanes, rails.num_lanes)
    sets = sets_of(request.gpus_per_node, rails.num_lanes)
    has_set = (distinct[:, None] & sets) == sets
    size = layout.num_groups[level]
    numbers = np.bincount(groups * len(distinct) + which, minlength=size * len(distinct)).reshape(size, -1)
    # Counts of hosts are exact in float64, whose product is many times as fast as that of integers.
    can_be = (numbers.astype(np.float64) @ has_set.astype(np.float64)) >= request.nodes
    if request.rule.slices:
        can_be &= _in_slices(state, request, level, cells, [(lanes & one) == one for one in sets], can_be.any(axis=0))
    is_home = can_be.any(axis=1)
    if not is_home.any() or is_home[groups].all():
        return room
    return room.without(cells[~is_home[groups]])


def _distinguished(lanes: Ints, num_lanes: int) -> tuple[Ints, Ints]:
    """Return the distinct ones in order, and the index of each; for few lanes without a sort."""
    if num_lanes > TABLE_LANES:
        distinct, which = np.unique(lanes, return_inverse=True)
        return distinct, which
    distinct = np.bincount(lanes).nonzero()[0]
    numbers = np.zeros(int(distinct[-1]) + 1 if len(distinct) else 0, dtype=np.int64)
    numbers[distinct] = np.arange(len(distinct))
    return distinct, numbers[lanes]


def _in_slices(
    state: FleetState, request: Request, level: int, cells: Ints, have_set: Sequence[Flags], is_requested: Flags
) -> Flags:
    """Return by group and set whether the group holds the gang in whole slices.

    Only the first set is marked with which any group does. ``have_set``: of each set which cells have it.
    """
    found = np.zeros((state.layout.num_groups[level], len(have_set)), dtype=np.bool_)
    for number in is_requested.nonzero()[0].tolist():
        room = room_by_group(state.layout, request.rule.slices, cells[have_set[number]], level)
        found[:, number] = room >= request.nodes
        if found[:, number].any():
            break
    return found


def on_same_rails(state: FleetState, request: Request, cells: Ints, suffices: Callable[[Ints], bool]) -> Ints:
    """Return the ``cells``, all in one home, that have one set of rails free.

    The set is the one by which the gang leaves fewest GPUs over. All cells are returned if no set is free on enough of
    them.
    """
    rails = state.rails
    if not _do_rails_matter(state, request):
        return cells
    lanes, counts = kept_lanes(state, request.tier, rails)[cells], state.tier(request.tier).counts[cells]
    keys = np.left_shift(counts, rails.num_lanes) | lanes
    kinds, which, numbers = np.unique(keys, return_inverse=True, return_counts=True)
    sets = sets_of(request.gpus_per_node, rails.num_lanes)
    has_set = (kinds[:, None] & sets) == sets
    reached = (numbers[:, None] * has_set).cumsum(axis=0)  # kinds are in the order of their free GPUs
    is_enough = reached[-1] >= request.nodes
    taken = np.diff(np.minimum(reached, request.nodes), axis=0, prepend=0)
    left_over = np.right_shift(kinds, rails.num_lanes) @ taken
    for number in np.lexsort((np.arange(len(sets)), left_over)).tolist():
        if is_enough[number]:
            own: Ints = cells[has_set[:, number][which]]
            if suffices(own):
                return own
    return cells


def picked_on_rails(
    state: FleetState, request: Request, cells: Ints, gpus: Ints, like: Ints | None = None
) -> Ints | None:
    """Return each cell's part of ``gpus``, the usable ones of ``cells``: on the same rails if all have them.

    Else as many cells as possible are on the same rails. ``like``: the part of a host of the gang, whose rails are
    taken if available. None: nothing is declared, or too few sound GPUs are on a rail.
    """
    rails = state.rails
    if not rails.num_lanes or request.prefers_weak:
        return None
    layout, num = state.layout, request.gpus_per_node
    gpus = gpus[layout.gpu_health_cost[gpus] == 0]
    gpus = gpus[rails.of_gpu[gpus] >= 0]
    owners = cells.searchsorted(layout.cell_of_gpu[gpus])
    free = lane_sets(rails, gpus, owners, len(cells))
    if (np.bincount(owners, minlength=len(cells)) < num).any():
        return None
    wanted = _wanted(rails, free, num, like)
    taken = [wanted if own & wanted == wanted else tightest(own, num) for own in free.tolist()]
    is_taken = np.right_shift(np.array(taken, dtype=np.int64)[owners], rails.lanes(gpus, owners)) & 1
    picked: Ints = gpus[is_taken == 1]
    return picked


def _wanted(rails: Rails, free: Ints, num: int, like: Ints | None) -> int:
    """Return the set of lanes that the hosts of a gang should have. ``free``: of each host."""
    if like is not None and (rails.of_gpu[like] >= 0).all():
        return int(lane_sets(rails, like, np.zeros(len(like), dtype=np.int64), 1)[0])
    common = int(np.bitwise_and.reduce(free))
    if common.bit_count() >= num:
        return tightest(common, num)
    sets = sets_of(num, rails.num_lanes)
    distinct, numbers = np.unique(free, return_counts=True)
    return int(sets[(numbers @ ((distinct[:, None] & sets) == sets)).argmax()])


def in_rail_order(state: FleetState, gpus: Ints) -> Ints:
    """Return ``gpus``, given by cell and slot, in the order of local ranks: each cell's by rail.

    So equal local ranks of hosts with the same rails are on one rail.
    """
    rails = state.rails
    if rails.are_by_slot:
        return gpus
    own = rails.of_gpu[gpus]
    last = np.where(own < 0, rails.num_lanes, own)
    ordered: Ints = gpus[np.lexsort((np.arange(len(gpus)), last, state.layout.cell_of_gpu[gpus]))]
    return ordered


def has_rails_of(state: FleetState, request: Request, cells: Ints, like: Ints | None, usable: Flags) -> Flags:
    """Return the cells on which the rails of ``like``, the part of a host, are usable."""
    rails = state.rails
    if like is None or (rails.of_gpu[like] < 0).any():
        return np.zeros(len(cells), dtype=np.bool_)
    wanted = _wanted(rails, np.zeros(0, dtype=np.int64), request.gpus_per_node, like)
    gpus = state.layout.gpus_of_cells(cells)
    gpus = gpus[usable[gpus]]
    found: Flags = (
        lane_sets(rails, gpus, cells.searchsorted(state.layout.cell_of_gpu[gpus]), len(cells)) & wanted
    ) == wanted
    return found


def _do_rails_matter(state: FleetState, request: Request) -> bool:
    """Return whether rails matter for the request.

    They do not if none are declared, if each host gives all its GPUs, if there is one host, or if the request asks for
    an even spread, which goes first.
    """
    if request.nodes == 1 or request.gpus_per_node > state.rails.num_lanes or request.rule.balance is not None:
        return False
    return request.gpus_per_node < int(state.layout.cell_size.max(initial=0))


@lru_cache(maxsize=4096)
def tightest(free: int, num: int) -> int:
    """Return ``num`` lanes of ``free`` that break no larger aligned block than necessary.

    Of the smallest blocks that have so many lanes together, the largest is used whole, and the rest are the lowest
    lanes.
    """
    blocks = sorted(_blocks(free, 1 << max(free.bit_length() - 1, 0).bit_length()))
    reached = list(accumulate(size for size, _ in blocks))
    largest = blocks[next(number for number, lanes in enumerate(reached) if lanes >= num)][0]
    start = next(start for size, start in blocks if size == largest)
    if largest >= num:
        return ((1 << num) - 1) << start
    whole = ((1 << largest) - 1) << start
    smaller = sum(((1 << size) - 1) << start for size, start in blocks if size <= largest)
    return whole | tightest(smaller & ~whole, num - largest)


def _blocks(free: int, width: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the fewest aligned blocks of which the set is made: size and first lane. ``width``: a power of two."""
    if free == (1 << width) - 1:
        yield width, start
    elif free:
        half = width // 2
        yield from _blocks(free & ((1 << half) - 1), half, start)
        yield from _blocks(free >> half, half, start + half)


@cache
def sets_of(num: int, num_lanes: int) -> Ints:
    """Return the sets of ``num`` lanes that are tried: by the fewest aligned blocks, then the lowest.

    If there are more than ``MOST_SETS``, only sets of aligned blocks are tried, of the smallest size that leaves no
    more.
    """
    block = 1
    while comb(num_lanes // block, num // block) > MOST_SETS and num % (2 * block) == 0:
        block *= 2
    starts = [((1 << block) - 1) << place for place in range(0, num_lanes - block + 1, block)]
    sets = [sum(chosen) for chosen in islice(combinations(starts, num // block), MOST_SETS)]
    width = 1 << (num_lanes - 1).bit_length()
    return np.array(sorted(sets, key=lambda lanes: (len(list(_blocks(lanes, width))), lanes)), dtype=np.int64)
