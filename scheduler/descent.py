"""Which hosts of its home a gang takes: level by level, the fewest domains, the last one with the least left over that
others cannot use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from scheduler.balance import even_shares
from scheduler.fragmentation import rises as rises_of
from scheduler.request import Request
from scheduler.slices import in_whole_slices, rooms_of_domains
from scheduler.soundness import costs_by_cell
from scheduler.topology import FleetState, Ints, Layout


def balance_level(layout: Layout, request: Request) -> int | None:
    return None if request.rule.balance is None else layout.level(request.rule.balance)


def level_below(layout: Layout, request: Request, level: int) -> int:
    """Over whose domains a gang is divided within a domain of ``level``."""
    balanced = balance_level(layout, request)
    return balanced if balanced is not None and balanced > level else level + 1


def unit_below(layout: Layout, request: Request, level: int) -> int:
    """The hosts of the widest slice that lies within the domains of ``level``."""
    inside = [one.nodes for one in request.rule.slices if (layout.level(one.level) or 0) >= level]
    return max(inside, default=1)


def descend(state: FleetState, request: Request, level: int, cells: Ints, nodes: int) -> Ints:
    """``nodes`` of ``cells``, which lie in one domain of ``level``: the fewest domains below, the last by best fit;
    evenly over those of the level that it asks for.
    """
    if len(cells) == nodes:
        return cells
    return _Descent(state, request, costs_by_cell(state, request)).chosen(level, cells, nodes)


def first_of(state: FleetState, request: Request, level: int, cells: Ints, nodes: int) -> Ints:
    """``nodes`` of ``cells``, which lie in one domain of ``level``: the first in order, in whole slices; without slices
    the cheapest first.
    """
    if request.rule.slices:
        return in_whole_slices(state.layout, request.rule.slices, cells, level)[:nodes]
    costs = costs_by_cell(state, request)
    return cells[:nodes] if costs is None else cells[np.argsort(costs[cells], kind="stable")[:nodes]]


@dataclass(frozen=True, slots=True)
class _Descent:
    """``costs``: None where no GPU is less sound than others."""

    state: FleetState
    request: Request
    costs: Ints | None

    def chosen(self, level: int, cells: Ints, nodes: int) -> Ints:
        layout, request = self.state.layout, self.request
        below = level_below(layout, request, level)
        if below >= layout.node_level:
            return self._by_best_fit(cells)[:nodes]
        groups = layout.groups[below][cells]
        first = groups.min()
        domain = groups - first
        sizes = np.bincount(domain)
        rooms = rooms_of_domains(layout, request.rule.slices, cells, domain, below) if request.rule.slices else sizes
        is_balanced = below == balance_level(layout, request)
        unit = unit_below(layout, request, below)
        rises = partial(self._rises, below, first, sizes)
        shares = even_shares(rooms, nodes, unit) if is_balanced else _fewest(rooms, sizes, nodes, rises)
        parts = [cells[(shares == sizes)[domain]]]
        is_divided = (shares > 0) & (shares < sizes)
        if level_below(layout, request, below) >= layout.node_level:
            is_asked = is_divided[domain]
            parts.append(self._first_of_each(cells[is_asked], domain[is_asked], shares))
        else:
            parts += [
                self.chosen(below, cells[domain == index], int(shares[index]))
                for index in is_divided.nonzero()[0].tolist()
            ]
        return np.concatenate(parts)

    def _rises(self, level: int, first: np.int64, sizes: Ints, domains: Ints, nodes: int) -> Ints:
        """What so many hosts in each of ``domains`` add to the fragments there; domain 0 is group ``first``."""
        if level not in self.state.fragments.levels or (first < 0 and not domains.all()):
            return np.zeros(len(domains), dtype=np.int64)
        return rises_of(self.state, self.request, level, domains + first, sizes[domains], nodes)

    def _first_of_each(self, cells: Ints, domain: Ints, shares: Ints) -> Ints:
        """As many of each domain by best fit as it gives."""
        order = self._order(cells, domain)
        domain = domain[order]
        places = np.arange(len(order)) - domain.searchsorted(domain)
        first: Ints = cells[order[places < shares[domain]]]
        return first

    def _by_best_fit(self, cells: Ints) -> Ints:
        ordered: Ints = cells[self._order(cells)]
        return ordered

    def _order(self, cells: Ints, *first: Ints) -> Ints:
        """Those where fragments grow least first, then with least left over, then the soundest, then by place."""
        costs = () if self.costs is None else (self.costs[cells],)
        own, counts = self.state.fragments.own_rise(self.request.gpus_per_node), tuple[Ints, ...]()
        if len(own) > self.request.gpus_per_node + 1:  # else each gives all that it can have
            left = self.state.tier(self.request.tier).counts[cells]
            counts = left, own[left]
        order: Ints = np.lexsort((cells, *costs, *counts, *first))
        return order


def _fewest(rooms: Ints, sizes: Ints, nodes: int, rises: Callable[[Ints, int], Ints]) -> Ints:
    """What each domain gives, where as few as can be are used: the largest whole, of the last the rest.

    ``rooms``: hosts in whole slices; of equal ones that of fewer hosts (``sizes``) is taken, which leaves fewest over.
    ``rises``: what the rest adds to the fragments of some domains; the tightest of those where it is least gives it.
    """
    largest_first = np.lexsort((sizes, -rooms))
    by_room = rooms[largest_first]
    reached = by_room.cumsum()
    num_whole = int(reached.searchsorted(nodes))
    shares = np.zeros(len(rooms), dtype=np.int64)
    shares[largest_first[:num_whole]] = by_room[:num_whole]
    rest = nodes - (int(reached[num_whole - 1]) if num_whole else 0)
    num_able = int((-by_room[num_whole:]).searchsorted(-rest, side="right"))
    able, of_each = largest_first[num_whole : num_whole + num_able], by_room[num_whole : num_whole + num_able]
    if num_able > 1 and of_each[-1] > rest:  # else nothing is left over in the last one, which no other can better
        of_each = rises(able, rest) * (by_room[0] + 1) + of_each
    shares[able[of_each.argmin()]] = rest
    return shares
