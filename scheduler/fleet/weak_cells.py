"""The cells of which a host's part costs something, by the groups of a level: what the cheapest cost together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from scheduler.fleet.cell_counts import Ints

if TYPE_CHECKING:
    from scheduler.fleet.layout import Layout


class PartCosts(Protocol):
    """``costs``: of each cell what one host's part costs; ``version`` differs when any of them does."""

    costs: Ints
    version: int


@dataclass(frozen=True, slots=True)
class WeakCells:
    """``cells``: of known groups, by group, the cheapest first. ``numbers``: how many each group has, which begin at
    ``first``. ``reached``: what the costs of the cells come to, one after another, from 0 before any.

    So what some of a group cost is a difference of two numbers, of each group at once.
    """

    numbers: Ints
    cells: Ints
    first: Ints
    reached: Ints

    def least(self, groups: Ints, num: Ints) -> Ints:
        """What the cheapest of each of ``groups`` cost together, as many as ``num`` says of it, which it has."""
        first = self.first[groups]
        least: Ints = self.reached[first + num] - self.reached[first]
        return least

    def largest(self, groups: Ints) -> Ints:
        """What the dearest one of each of ``groups`` costs; 0 where there is none."""
        last = self.first[groups] + self.numbers[groups]
        largest: Ints = self.reached[last] - self.reached[last - 1]
        largest[self.numbers[groups] == 0] = 0
        return largest

    def without(self, gone: Iterable[tuple[int, int]]) -> "WeakCells":
        """``gone``: some of these cells, and the group of each."""
        left = WeakCells(self.numbers.copy(), self.cells.copy(), self.first, self.reached.copy())
        for cell, group in gone:
            left._remove(cell, group)
        return left

    def _remove(self, cell: int, group: int) -> None:
        """Those of its group that come after it move up; the last place of the group is nobody's then."""
        row, end = int((self.cells == cell).nonzero()[0][0]), int(self.first[group] + self.numbers[group])
        cost = self.reached[row + 1] - self.reached[row]
        self.reached[row + 1 : end] = self.reached[row + 2 : end + 1] - cost
        self.cells[row : end - 1] = self.cells[row + 1 : end]
        self.cells[end - 1] = -1
        self.numbers[group] -= 1


def weak_cells(layout: "Layout", cells: Ints, costs: Ints, level: int) -> WeakCells:
    """``cells``: of positive cost; ``costs``: of each cell of the fleet."""
    groups = layout.groups[level][cells]
    is_known = groups >= 0
    cells, groups = cells[is_known], groups[is_known]
    order = np.lexsort((costs[cells], groups))
    cells, numbers = cells[order], np.bincount(groups, minlength=layout.num_groups[level])
    reached = np.zeros(len(cells) + 1, dtype=np.int64)
    costs[cells].cumsum(out=reached[1:])
    return WeakCells(numbers, cells, numbers.cumsum() - numbers, reached)
