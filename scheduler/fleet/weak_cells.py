"""The cells of which a host's part has a cost, by the groups of a level, for sums over the cheapest of a group."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from scheduler.fleet.cell_counts import Ints

if TYPE_CHECKING:
    from scheduler.fleet.layout import Layout


class PartCosts(Protocol):
    """Costs of parts.

    ``costs``: the cost of one host's part of each cell; ``version`` differs when any of them does.
    """

    costs: Ints
    version: int


@dataclass(frozen=True, slots=True)
class WeakCells:
    """Cells with a cost, by group.

    ``cells``: cells of known groups, by group, the cheapest first. ``numbers``: how many each group has, which begin at
    ``first``. ``reached``: the running sum of the costs of the cells, from 0 before any. So the cost of the cheapest
    cells of a group is a difference of two numbers, for all groups at once.
    """

    numbers: Ints
    cells: Ints
    first: Ints
    reached: Ints

    def least(self, groups: Ints, num: Ints) -> Ints:
        """Return the cost of the cheapest ``num`` cells of each of ``groups``, which has so many."""
        first = self.first[groups]
        least: Ints = self.reached[first + num] - self.reached[first]
        return least

    def largest(self, groups: Ints) -> Ints:
        """Return the cost of the dearest cell of each of ``groups``; 0 if it has none."""
        last = self.first[groups] + self.numbers[groups]
        largest: Ints = self.reached[last] - self.reached[last - 1]
        largest[self.numbers[groups] == 0] = 0
        return largest

    def without(self, gone: Iterable[tuple[int, int]]) -> "WeakCells":
        """Return a copy without ``gone``: some of these cells, each with its group."""
        left = WeakCells(self.numbers.copy(), self.cells.copy(), self.first, self.reached.copy())
        for cell, group in gone:
            left._remove(cell, group)
        return left

    def _remove(self, cell: int, group: int) -> None:
        """Remove the cell: later cells of its group move up, and the last place of the group becomes empty."""
        row, end = int((self.cells == cell).nonzero()[0][0]), int(self.first[group] + self.numbers[group])
        cost = self.reached[row + 1] - self.reached[row]
        self.reached[row + 1 : end] = self.reached[row + 2 : end + 1] - cost
        self.cells[row : end - 1] = self.cells[row + 1 : end]
        self.cells[end - 1] = -1
        self.numbers[group] -= 1


def weak_cells(layout: "Layout", cells: Ints, costs: Ints, level: int) -> WeakCells:
    """Return the cells with a cost. ``cells``: of positive cost; ``costs``: of each cell of the fleet."""
    groups = layout.groups[level][cells]
    is_known = groups >= 0
    cells, groups = cells[is_known], groups[is_known]
    order = np.lexsort((costs[cells], groups))
    cells, numbers = cells[order], np.bincount(groups, minlength=layout.num_groups[level])
    reached = np.zeros(len(cells) + 1, dtype=np.int64)
    costs[cells].cumsum(out=reached[1:])
    return WeakCells(numbers, cells, numbers.cumsum() - numbers, reached)
