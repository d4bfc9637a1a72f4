"""The number of cells that can give one host's part, by domain, updated from the cells that change.

One tally stands for each tier and number of GPUs a host, made at its first use. ``FleetState.recount`` over the whole
fleet is its oracle in tests.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.fleet.cell_counts import Flags as Flags  # noqa: PLC0414  # every room of the core has these from here
from scheduler.fleet.cell_counts import Ints as Ints  # noqa: PLC0414
from scheduler.fleet.weak_cells import PartCosts, WeakCells, weak_cells

if TYPE_CHECKING:
    from scheduler.fleet.layout import Layout

NO_CELLS: Final[Ints] = np.zeros(0, dtype=np.int64)
NEVER: Final = 1 << 62
"""The GPUs that a closed cell would need to fit: no host has so many."""


class Tally:
    """The count of one tier, number of GPUs a host, and node filter.

    ``usable``: the GPUs of each cell that fits, else 0. ``counts``: an array kept elsewhere, read as it changes.
    ``gpus_per_node``: the GPUs that a cell needs to fit, one number for all or one for each; ``shut``: cells that never
    fit.
    """

    __slots__ = ("_counts", "_layout", "_num_cells", "_num_gpus", "_of_each", "_usable", "_weak", "_width")

    def __init__(self, layout: "Layout", counts: Ints, gpus_per_node: int | Ints, shut: Ints = NO_CELLS) -> None:
        self._layout, self._counts = layout, counts
        self._width = gpus_per_node if not len(shut) else _never_in(shut, gpus_per_node, layout.num_cells)
        self._of_each = layout.even_size if layout.is_whole(gpus_per_node) else None
        self._usable: Ints = self._fitting(None)
        self._num_cells: list[Ints | None] = [None] * layout.node_level
        self._num_gpus: list[Ints | None] = [None] * layout.node_level
        self._weak: dict[int, tuple[PartCosts, int, WeakCells]] = {}

    def _fitting(self, cells: Ints | None) -> Ints:
        counts = self._counts if cells is None else self._counts[cells]
        width = self._width if cells is None or isinstance(self._width, int) else self._width[cells]
        fitting: Ints = counts * (counts >= width)  # of few cells half the time of ``where``
        return fitting

    @property
    def usable(self) -> Ints:
        return self._usable

    @property
    def node_level(self) -> int:
        """The level at which each cell is a group of its own."""
        return self._layout.node_level

    def num_cells(self, level: int) -> Ints:
        """Return the fitting cells of each group of a level above the nodes; the last entry is for unknown groups."""
        found = self._num_cells[level]
        if found is None:
            found = self._num_cells[level] = self._count_cells(level)
        return found

    def num_gpus(self, level: int) -> Ints:
        """Return the usable GPUs in fitting cells, in the order of ``num_cells``."""
        if self._of_each is not None:
            return self.num_cells(level) * self._of_each
        found = self._num_gpus[level]
        if found is None:
            found = self._num_gpus[level] = self._count_gpus(level)
        return found

    @property
    def cells(self) -> Ints:
        """The cells that fit, in topology order."""
        fitting: Ints = np.flatnonzero(self.usable)
        return fitting

    def most_cells(self, level: int) -> int:
        """Return the most cells that fit in one group."""
        if level == self._layout.node_level:
            return int(self.usable.any())
        numbers = self.num_cells(level)[:-1]
        return int(numbers[numbers.argmax()]) if len(numbers) else 0

    def cells_in(self, level: int, group: int) -> Ints:
        """Return the cells of the group that fit, in topology order."""
        layout = self._layout
        first, last = int(layout.first_cell[level][group]), int(layout.last_cell[level][group]) + 1
        is_inside = (layout.groups[level][first:last] == group) & (self._between(first, last) > 0)
        inside: Ints = is_inside.nonzero()[0] + first
        return inside

    def numbers(self, level: int) -> Ints:
        """Return the number of fitting cells in each group of any level."""
        if level == self._layout.node_level:
            return (self.usable > 0).astype(np.int64)
        numbers: Ints = self.num_cells(level)[:-1]
        return numbers

    def weak_cells(self, parts: PartCosts, level: int) -> WeakCells:
        """Return the fitting cells with a cost.

        They stand until a cost changes, since a cell that does not fit has none.
        """
        known = self._weak.get(level)
        if known is None or known[0] is not parts or known[1] != parts.version:
            weak = self._layout.weak_cells
            weak = weak[(parts.costs[weak] > 0) & (self.usable[weak] > 0)]
            found = weak_cells(self._layout, weak, parts.costs, level)
            known = self._weak[level] = parts, parts.version, found
        return known[2]

    def most_weak(self, parts: PartCosts, level: int) -> Ints:
        """Return an upper bound of the fitting cells with a cost in each group."""
        return self.weak_cells(parts, level).numbers

    def follow(self, cells: Ints) -> None:
        """Update the tally after the counts of ``cells``, distinct, have changed."""
        before, after = self._usable[cells], self._fitting(cells)
        changed = (before != after).nonzero()[0]
        if not len(changed):
            return
        cells, before, after = cells[changed], before[changed], after[changed]
        self._usable[cells] = after
        by = (after > 0).astype(np.int64) - (before > 0)
        for groups, num_cells, num_gpus in zip(self._layout.groups[:-1], self._num_cells, self._num_gpus, strict=True):
            if num_cells is not None:
                np.add.at(num_cells, groups[cells], by)
            if num_gpus is not None:
                np.add.at(num_gpus, groups[cells], after - before)

    def without(self, cells: Ints) -> "Tally":
        """Return the tally without ``cells``, distinct. It is valid until this one follows a change."""
        usable = self.usable[cells]
        gone = usable.nonzero()[0]
        return Without(self, cells[gone], usable[gone]) if len(gone) else self

    def _between(self, first: int, last: int) -> Ints:
        """Return ``usable`` of these cells, for reading alone."""
        return self._usable[first:last]

    def _count_cells(self, level: int) -> Ints:
        cells = self.cells
        size = self._layout.num_groups[level] + 1
        return np.bincount(self._layout.groups[level][cells] % size, minlength=size)  # of no known group: the last

    def _count_gpus(self, level: int) -> Ints:
        cells = self.cells
        size = self._layout.num_groups[level] + 1
        groups = self._layout.groups[level][cells] % size
        return np.bincount(groups, self.usable[cells], minlength=size).astype(np.int64)


class Without(Tally):
    """A tally without some cells that fit. It copies only the arrays that are read, not the fleet for each gang."""

    __slots__ = ("_gone", "_gone_gpus", "_whole")

    def __init__(self, whole: Tally, gone: Ints, gone_gpus: Ints) -> None:
        self._whole, self._gone, self._gone_gpus = whole, gone, gone_gpus.tolist()
        self._layout, self._of_each = whole._layout, whole._of_each  # noqa: SLF001  # of its own class
        self._num_cells, self._num_gpus = [None] * self._layout.node_level, [None] * self._layout.node_level

    @property
    def usable(self) -> Ints:
        if not hasattr(self, "_usable"):
            self._usable = self._whole.usable.copy()
            self._usable[self._gone] = 0
        return self._usable

    def _between(self, first: int, last: int) -> Ints:
        between = self._whole._between(first, last)  # noqa: SLF001  # of its own class
        inside = [cell - first for cell in self._gone.tolist() if first <= cell < last]
        if inside:
            between = between.copy()
            between[inside] = 0
        return between

    def weak_cells(self, parts: PartCosts, level: int) -> WeakCells:
        weak = self._whole.weak_cells(parts, level)
        gone = self._gone[parts.costs[self._gone].nonzero()[0]]
        if not len(gone):
            return weak
        groups = self._layout.groups[level][gone].tolist()
        return weak.without((cell, group) for cell, group in zip(gone.tolist(), groups, strict=True) if group >= 0)

    def most_weak(self, parts: PartCosts, level: int) -> Ints:
        return self._whole.most_weak(parts, level)

    def _count_cells(self, level: int) -> Ints:
        num_cells = self._whole.num_cells(level).copy()
        # Mostly few cells are left out: plain numbers are then faster than arrays.
        for group in self._layout.groups[level][self._gone].tolist():
            num_cells[group] -= 1
        return num_cells

    def _count_gpus(self, level: int) -> Ints:
        num_gpus = self._whole.num_gpus(level).copy()
        groups = self._layout.groups[level][self._gone].tolist()
        for group, gone in zip(groups, self._gone_gpus, strict=True):
            num_gpus[group] -= gone
        return num_gpus


def _never_in(shut: Ints, gpus_per_node: int | Ints, num_cells: int) -> Ints:
    """Return the GPUs that each cell needs to fit; cells of ``shut`` never have as many."""
    width = np.full(num_cells, gpus_per_node, dtype=np.int64)
    width[shut] = NEVER
    return width


def least_of(groups: Ints, keys: Ints) -> Ints:
    """Return the ``groups``, at least one, whose key is the least. ``keys``: of each of them."""
    least: Ints = groups[keys == keys[keys.argmin()]]  # of few keys ``min`` takes four times as long
    return least
