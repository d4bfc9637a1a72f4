"""The hosts of its home that a gang takes, level by level.

It takes the fewest domains, and of these the smallest (``scheduler.solve.fewest_domains``).
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from scheduler.fleet.fragmentation import rises as rises_of
from scheduler.fleet.topology import FleetState, Ints, Layout
from scheduler.solve.balance import even_shares
from scheduler.solve.bundle_holders import absence_key
from scheduler.solve.fewest_domains import fewest_shares
from scheduler.solve.request import Request
from scheduler.solve.slices import in_whole_slices, rooms_of_domains


def balance_level(layout: Layout, request: Request) -> int | None:
    return None if request.rule.balance is None else layout.level(request.rule.balance)


def level_below(balanced: int | None, level: int) -> int:
    """Return the level over whose domains a gang is divided within a domain of ``level``.

    ``balanced``: the level of an even spread, or None.
    """
    return level + 1 if balanced is None or balanced <= level else balanced


def unit_below(layout: Layout, request: Request, level: int) -> int:
    """Return the hosts of the widest slice within the domains of ``level``."""
    if not request.rule.slices:
        return 1
    return max([1, *(one.nodes for one in request.rule.slices if (layout.level(one.level) or 0) >= level)])


def descend(state: FleetState, request: Request, level: int, cells: Ints, costs: Ints | None) -> Ints:
    """Return the gang's hosts in topology order, of ``cells`` in one domain of ``level``.

    It takes the fewest domains below, the smallest that suffice; an even spread where it asks for one. ``costs``: of
    each cell of the fleet; None if no GPU is less sound than others.
    """
    if len(cells) == request.nodes:
        return cells
    chosen = _Descent(state, request, costs, balance_level(state.layout, request)).chosen(level, cells, request.nodes)
    chosen.sort()  # its own array, or the first of ``cells``, which are in order
    return chosen


def first_of(state: FleetState, request: Request, level: int, cells: Ints, costs: Ints | None) -> Ints:
    """Return the first hosts in order, in whole slices; without slices the cheapest first."""
    if request.rule.slices:
        return in_whole_slices(state.layout, request.rule.slices, cells, level)[: request.nodes]
    if costs is None:
        return cells[: request.nodes]
    return np.sort(cells[_by_cost(request, costs[cells]).argsort(kind="stable")[: request.nodes]])


@dataclass(frozen=True, slots=True)
class _Descent:
    state: FleetState
    request: Request
    costs: Ints | None
    balanced: int | None

    def chosen(self, level: int, cells: Ints, nodes: int) -> Ints:
        layout, request = self.state.layout, self.request
        below = level_below(self.balanced, level)
        if below >= layout.node_level:
            return self._by_best_fit(cells)[:nodes]
        groups = layout.groups[below][cells]
        first = groups[groups.argmin()]
        domain = groups - first
        sizes = np.bincount(domain)
        rooms = rooms_of_domains(layout, request.rule.slices, cells, domain, below) if request.rule.slices else sizes
        if below == self.balanced:
            shares = even_shares(rooms, nodes, unit_below(layout, request, below))
        else:
            shares = fewest_shares(rooms, sizes, nodes, partial(self._rises, below, first, sizes))
        return self._shared_out(below, cells, domain, sizes, shares)

    def _shared_out(self, level: int, cells: Ints, domain: Ints, sizes: Ints, shares: Ints) -> Ints:
        """Return as many cells of each domain of ``level`` as it gives, of its ``sizes`` cells."""
        is_last = level_below(self.balanced, level) >= self.state.layout.node_level
        keys = self._keys(cells) if is_last else ()
        if is_last and not keys:
            return _first_of_each(cells, domain, sizes, shares)
        is_whole = shares == sizes
        is_divided = (shares > 0) & ~is_whole
        parts = [cells[is_whole[domain]]]
        if is_last:
            asked = is_divided[domain].nonzero()[0]
            order = asked[np.lexsort((*(key[asked] for key in keys), domain[asked]))]
            parts.append(_first_of_each(cells[order], domain[order], sizes * is_divided, shares))
        else:
            parts += [
                self.chosen(level, cells[domain == index], int(shares[index]))
                for index in is_divided.nonzero()[0].tolist()
            ]
        return np.concatenate(parts)

    def _rises(self, level: int, first: np.int64, sizes: Ints, domains: Ints, nodes: int) -> Ints:
        """Return what so many hosts in each of ``domains`` add to the fragments there; domain 0 is group ``first``."""
        if level not in self.state.fragments.levels or (first < 0 and not domains.all()):
            return np.zeros(len(domains), dtype=np.int64)
        return rises_of(self.state, self.request, level, domains + first, sizes[domains], nodes)

    def _by_best_fit(self, cells: Ints) -> Ints:
        keys = self._keys(cells)
        return cells[np.lexsort(keys)] if keys else cells

    def _keys(self, cells: Ints) -> tuple[Ints, ...]:
        """Return the sort keys of cells, the most important last; none that is the same for all cells.

        First come cells where fragments grow least, then with least left over, then the soundest, then cells that hold
        the bundle, then by place.
        """
        own = self._own_keys(cells)
        absent = absence_key(self.state.layout, self.request, cells)
        return own if absent is None else (absent, *own)

    def _own_keys(self, cells: Ints) -> tuple[Ints, ...]:
        costs, own = None, self.state.fragments.own_rise(self.request.gpus_per_node)
        if self.costs is not None:
            costs = self.costs[cells]
            costs = _by_cost(self.request, costs) if costs[costs.argmax()] else None
        if len(own) <= self.request.gpus_per_node + 1:  # each gives all that it can have
            return () if costs is None else (costs,)
        left = self.state.tier(self.request.tier).counts[cells]
        return (left, own[left]) if costs is None else (costs, left, own[left])


def _first_of_each(cells: Ints, domain: Ints, sizes: Ints, shares: Ints) -> Ints:
    """Return as many cells of each domain as it gives.

    ``cells``: in the order of domains, which have ``sizes`` cells.
    """
    ends = sizes.cumsum() - sizes + shares
    first: Ints = cells[np.arange(len(cells)) < ends[domain]]
    return first


def _by_cost(request: Request, costs: Ints) -> Ints:
    """Return the key by which the cells that the request prefers come first."""
    return -costs if request.prefers_weak else costs
