"""Slices of a gang: so many hosts that follow each other by rank, in one domain of a level, within wider ones.

What a domain has beyond a whole number of slices is of no use to the gang: counts are rounded down from the narrowest
level outward (as Kueue's topology-aware scheduling does).
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduler.placement_rule import Slice
from scheduler.tally import Tally
from scheduler.topology import NOWHERE, Ints, Layout

_Run = tuple[float, tuple[int, ...]]
"""What a run of cells costs, and the cells."""


def count_by_group(layout: Layout, cells: Ints, level: int) -> Ints:
    groups = layout.groups[level][cells]
    groups = groups[groups != NOWHERE] if len(layout.unknown_cells[level]) else groups
    return np.bincount(groups, minlength=layout.num_groups[level])


def room_by_group(layout: Layout, slices: Sequence[Slice], cells: Ints, level: int) -> Ints:
    """The hosts that each group of ``level`` has for a gang in such slices: of whole ones alone."""
    return count_by_group(layout, in_whole_slices(layout, slices, cells, level), level)


def room_by_numbers(layout: Layout, slices: Sequence[Slice], room: Tally, level: int) -> Ints:
    """As ``room_by_group`` of the cells of ``room``, by how many each group has: whole slices are counted alone."""
    numbers: Ints | None = None
    inner = level
    for one in reversed(slices):
        at = layout.level(one.level)
        if at is None:
            return np.zeros(layout.num_groups[level], dtype=np.int64)
        if at < level:
            break
        if numbers is None:
            numbers = room.numbers(at)
        elif at != inner:
            numbers = layout.nesting(inner, at).summed_up(numbers)
        numbers, inner = numbers // one.nodes * one.nodes, at
    if numbers is None:
        return room.numbers(level)
    return numbers if inner == level else layout.nesting(inner, level).summed_up(numbers)


def in_whole_slices(layout: Layout, slices: Sequence[Slice], cells: Ints, level: int = 0) -> Ints:
    """Of ``cells``, in topology order, as many as make whole slices, the first of each domain.

    ``level``: slices of wider levels ask nothing, since the gang's home lies in one domain of each.
    """
    for one in reversed(slices):
        at = layout.level(one.level)
        if at is None:
            return cells[:0]
        if at < level:
            break
        cells = _whole_runs(cells, layout.groups[at][cells], one.nodes)
    return cells


def num_in_whole_slices(layout: Layout, slices: Sequence[Slice], cells: Ints, level: int) -> int:
    """How many ``in_whole_slices`` has of ``cells``, one at least, which lie in one group of ``level``."""
    at = layout.level(slices[0].level) if len(slices) == 1 else None
    if at is None or at < level:
        return len(in_whole_slices(layout, slices, cells, level))
    groups, nodes = layout.groups[at][cells], slices[0].nodes
    first = groups[groups.argmin()]
    numbers = np.bincount(groups - first)
    if first == NOWHERE:
        numbers[0] = 0
    return int((numbers // nodes).sum()) * nodes


def rooms_of_domains(layout: Layout, slices: Sequence[Slice], cells: Ints, domain: Ints, level: int) -> Ints:
    """The hosts in whole slices that each domain has. ``domain``: the number of each of ``cells``, by ``level``."""
    sizes = np.bincount(domain)
    if len(slices) == 1 and layout.level(slices[0].level) == level:
        return np.asarray(sizes // slices[0].nodes * slices[0].nodes)
    is_whole = np.zeros(len(cells), dtype=np.bool_)
    is_whole[cells.searchsorted(in_whole_slices(layout, slices, cells, level))] = True
    return np.bincount(domain[is_whole], minlength=len(sizes))


def rooms_by_row(
    layout: Layout, slices: Sequence[Slice], cells: Ints, are_usable: npt.NDArray[np.bool_], level: int
) -> Ints:
    """Of each row the hosts in whole slices of those ``cells`` that it marks, which lie in one group of ``level``."""
    numbers = are_usable.astype(np.float32)
    for one in reversed(slices):
        at = layout.level(one.level)
        if at is None:
            return np.zeros(len(numbers), dtype=np.int64)
        if at < level:
            break
        groups, firsts, column = np.unique(layout.groups[at][cells], return_index=True, return_inverse=True)
        is_within = (np.arange(len(groups)) == column[:, None]) & (groups != NOWHERE)
        numbers = numbers @ is_within.astype(np.float32) // one.nodes * one.nodes
        cells = cells[firsts]
    rooms: Ints = numbers.sum(axis=1).astype(np.int64)
    return rooms


def outermost(layout: Layout, slices: Sequence[Slice], level: int) -> int | None:
    """The widest level of slices within one group of ``level``."""
    levels = [at for one in slices if (at := layout.level(one.level)) is not None and at >= level]
    return min(levels, default=None)


def _whole_runs(cells: Ints, groups: Ints, num_nodes: int) -> Ints:
    """Of ``cells``, in topology order, the first of each group, as many as make whole runs of so many."""
    is_known = groups != NOWHERE
    if not is_known.all():
        cells, groups = cells[is_known], groups[is_known]
    by_group = None
    if (groups[1:] < groups[:-1]).any():  # cells of several cohorts stand among each other
        by_group = groups.argsort(kind="stable")
        groups = groups[by_group]
    first = groups.searchsorted(groups)
    num_in_group = groups.searchsorted(groups, side="right") - first
    is_whole = np.arange(len(groups)) - first < num_in_group - num_in_group % num_nodes
    return cells[is_whole] if by_group is None else np.sort(cells[by_group[is_whole]])


def cheapest_in_slices(
    layout: Layout, slices: Sequence[Slice], cells: Ints, costs: npt.NDArray[np.float64], num_nodes: int, level: int
) -> Ints:
    """Of ``cells`` in a domain of ``level`` ``num_nodes`` in whole slices: those of the least sum of ``costs``, a cell
    each, as far as taking the cheapest slices one after another finds it. Empty where there are too few.
    """
    runs: list[_Run] = [(float(cost), (int(cell),)) for cost, cell in zip(costs, cells, strict=True)]
    for one in reversed(slices):
        at = layout.level(one.level)
        if at is None or at < level:
            break
        runs = _joined(layout.groups[at], runs, one.nodes)
    width = len(runs[0][1]) if runs else 1
    chosen = sorted(runs)[: num_nodes // width]
    found = [cell for _, run in chosen for cell in run]
    return np.array(sorted(found) if len(found) == num_nodes else [], dtype=np.int64)


def _joined(groups: Ints, runs: Sequence[_Run], num_nodes: int) -> list[_Run]:
    by_group = defaultdict[int, list[_Run]](list)
    for run in sorted(runs):
        by_group[int(groups[run[1][0]])].append(run)
    by_group.pop(NOWHERE, None)
    joined = []
    for inside in by_group.values():
        width = num_nodes // len(inside[0][1])
        for start in range(0, len(inside) - width + 1, width):
            together = inside[start : start + width]
            joined.append((sum(cost for cost, _ in together), tuple(cell for _, run in together for cell in run)))
    return joined


def are_in_slices(layout: Layout, slices: Sequence[Slice], cells: Ints) -> bool:
    """Whether ``cells``, a host each in rank order, stand in such slices."""
    for one in slices:
        at = layout.level(one.level)
        groups = None if at is None else layout.groups[at][cells]
        if groups is None or len(groups) % one.nodes or (groups == NOWHERE).any():
            return False
        by_slice = groups.reshape(-1, one.nodes)
        if (by_slice != by_slice[:, :1]).any():
            return False
    return True
