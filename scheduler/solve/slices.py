"""Slices of a gang: so many hosts in a row by rank, in one domain of a level, within wider ones.

The gang cannot use the hosts of a domain beyond a whole number of slices: counts are rounded down from the narrowest
level outward (as Kueue's topology-aware scheduling does).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler.fleet.tally import Tally
from scheduler.fleet.topology import NOWHERE, Ints, Layout
from scheduler.solve.placement_rule import Slice


def count_by_group(layout: Layout, cells: Ints, level: int) -> Ints:
    groups = layout.groups[level][cells]
    groups = groups[groups != NOWHERE] if len(layout.unknown_cells[level]) else groups
    return np.bincount(groups, minlength=layout.num_groups[level])


def room_by_group(layout: Layout, slices: Sequence[Slice], cells: Ints, level: int) -> Ints:
    """Return the hosts that each group of ``level`` has for a gang in such slices: only whole slices count."""
    return count_by_group(layout, in_whole_slices(layout, slices, cells, level), level)


def room_by_numbers(layout: Layout, slices: Sequence[Slice], room: Tally, level: int) -> Ints:
    """Return the same as ``room_by_group`` of the cells of ``room``, from the number of cells of each group."""
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
    """Return as many ``cells``, in topology order, as make whole slices, the first of each domain.

    ``level``: slices of wider levels do not matter, since the gang's home is within one domain of each.
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
    """Return how many of ``cells``, at least one, all in one group of ``level``, are in whole slices."""
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
    """Return the hosts in whole slices of each domain. ``domain``: the number of each of ``cells``, by ``level``."""
    sizes = np.bincount(domain)
    if len(slices) == 1 and layout.level(slices[0].level) == level:
        return np.asarray(sizes // slices[0].nodes * slices[0].nodes)
    is_whole = np.zeros(len(cells), dtype=np.bool_)
    is_whole[cells.searchsorted(in_whole_slices(layout, slices, cells, level))] = True
    return np.bincount(domain[is_whole], minlength=len(sizes))


def rooms_by_row(
    layout: Layout, slices: Sequence[Slice], cells: Ints, are_usable: npt.NDArray[np.bool_], around: Ints, level: int
) -> Ints:
    """Return for each row the hosts in whole slices, of the ``cells`` that it marks and all of ``around``.

    All cells are within one group of ``level``.
    """
    numbers = are_usable.astype(np.float32)
    constant = np.ones(len(around), dtype=np.float32)
    cells = np.concatenate([cells, around])
    for one in reversed(slices):
        at = layout.level(one.level)
        if at is None:
            return np.zeros(len(numbers), dtype=np.int64)
        if at < level:
            break
        groups, firsts, column = np.unique(layout.groups[at][cells], return_index=True, return_inverse=True)
        is_within = ((np.arange(len(groups)) == column[:, None]) & (groups != NOWHERE)).astype(np.float32)
        by_group = numbers @ is_within[: numbers.shape[1]] + constant @ is_within[numbers.shape[1] :]
        numbers, constant = by_group // one.nodes * one.nodes, constant[:0]
        cells = cells[firsts]
    rooms: Ints = numbers.sum(axis=1).astype(np.int64) + int(constant.sum())
    return rooms


def outermost(layout: Layout, slices: Sequence[Slice], level: int) -> int | None:
    """Return the widest level of slices within one group of ``level``; None if there is none."""
    levels = [at for one in slices if (at := layout.level(one.level)) is not None and at >= level]
    return min(levels, default=None)


def _whole_runs(cells: Ints, groups: Ints, num_nodes: int) -> Ints:
    """Return the first ``cells`` of each group, in topology order, as many as make whole runs of so many."""
    is_known = groups != NOWHERE
    if not is_known.all():
        cells, groups = cells[is_known], groups[is_known]
    by_group = None
    if (groups[1:] < groups[:-1]).any():  # cells of several cohorts are mixed
        by_group = groups.argsort(kind="stable")
        groups = groups[by_group]
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1])) if len(groups) else groups
    sizes = np.diff(np.append(starts, len(groups)))
    is_whole = np.arange(len(groups)) - starts.repeat(sizes) < (sizes - sizes % num_nodes).repeat(sizes)
    return cells[is_whole] if by_group is None else np.sort(cells[by_group[is_whole]])


def cheapest_in_slices(
    layout: Layout, slices: Sequence[Slice], cells: Ints, costs: npt.NDArray[np.float64], num_nodes: int, level: int
) -> Ints:
    """Return ``num_nodes`` of ``cells`` in a domain of ``level`` in whole slices, with a low sum of ``costs``.

    ``costs`` has one entry a cell. The cheapest slices are taken one after another, which need not be the least sum.
    Empty if there are too few.
    """
    runs = cheapest_runs(layout, slices, cells, costs, level)
    needed = num_nodes // runs.cells.shape[1]
    if len(runs.costs) < needed:
        return cells[:0]
    in_order = np.lexsort((runs.cells[:, 0], runs.costs))[:needed]
    return np.sort(runs.cells[in_order].ravel())


class Runs(NamedTuple):
    """Cells in a row by rank: the cost of each run, and its cells by row."""

    costs: npt.NDArray[np.float64]
    cells: Ints


def cheapest_runs(
    layout: Layout, slices: Sequence[Slice], cells: Ints, costs: npt.NDArray[np.float64], level: int
) -> Runs:
    """Return ``cells`` in the outermost slices within ``level``, the cheapest together; single cells without slices."""
    runs = Runs(costs, cells[:, None])
    for one in reversed(slices):
        at = layout.level(one.level)
        if at is None or at < level:
            break
        runs = _joined(layout, at, runs, one.nodes)
    return runs


def in_groups(groups: Ints, num_groups: int) -> Ints:
    """Return the order by group, stable within one: numpy sorts short numbers in linear time."""
    short = np.int16 if num_groups <= np.iinfo(np.int16).max else np.int64
    return np.argsort(groups.astype(short), kind="stable")


def _joined(layout: Layout, level: int, runs: Runs, num_nodes: int) -> Runs:
    by_cost = np.argsort(runs.costs, kind="stable")
    own, width = layout.groups[level][runs.cells[by_cost, 0]], num_nodes // runs.cells.shape[1]
    by_group = in_groups(own, layout.num_groups[level])
    own, in_order = own[by_group], by_cost[by_group]
    starts = np.flatnonzero(np.append(True, own[1:] != own[:-1])) if len(own) else own
    sizes = np.diff(np.append(starts, len(own)))
    is_whole = np.arange(len(own)) - starts.repeat(sizes) < (sizes - sizes % width).repeat(sizes)
    in_order = in_order[is_whole & (own != NOWHERE)]
    return Runs(runs.costs[in_order].reshape(-1, width).sum(axis=1), runs.cells[in_order].reshape(-1, num_nodes))


def are_in_slices(layout: Layout, slices: Sequence[Slice], cells: Ints) -> bool:
    """Return whether ``cells``, one host each in rank order, are in such slices."""
    for one in slices:
        at = layout.level(one.level)
        groups = None if at is None else layout.groups[at][cells]
        if groups is None or len(groups) % one.nodes or (groups == NOWHERE).any():
            return False
        by_slice = groups.reshape(-1, one.nodes)
        if (by_slice != by_slice[:, :1]).any():
            return False
    return True
