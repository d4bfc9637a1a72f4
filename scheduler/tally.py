"""How many cells can give one host's part, by domain: kept up by the cells that change, not counted over the fleet.

One tally stands for each tier and number of GPUs a host, made when somebody first asks. ``FleetState.recount`` over the
whole fleet is its oracle in tests.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scheduler.layout import Layout

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_BEHIND: Final = 1_000
"""So many changes are noted for who has not asked since; then each is counted anew."""
MAX_KEPT: Final = 64
"""So many counts stand at once, about 0.2 MB each at 100,000 GPUs; then the oldest goes."""

NEVER: Final = 1 << 62
"""The place of a cell that cannot be had: no gang has so many hosts."""


@dataclass(frozen=True, slots=True)
class Sums:
    """One entry a group of a level, and a last one for cells of no known group.

    ``cells``: that fit; ``gpus``: usable in those.
    """

    cells: Ints
    gpus: Ints


@dataclass(frozen=True, slots=True)
class WeakRows:
    """The cells whose part costs something, by group of one level and cost: one row each, of known groups alone.

    ``places``: of each among those of its group, from 0, the cheapest first, ``NEVER`` and less by a few of one that
    cannot be had; ``numbers``: how many each group has.
    """

    cells: Ints
    groups: Ints
    costs: Ints
    places: Ints
    numbers: Ints


class PartCosts(Protocol):
    """``costs``: of each cell what one host's part costs; ``version`` differs when any of them does."""

    costs: Ints
    version: int


class Tally:
    """``usable``: the GPUs of each cell that fits, else 0. ``counts``: as they are kept elsewhere, read as they change;
    ``gpus_per_node``: that it needs to fit, the same of all or of each its own; ``shut``: cells that never fit.
    """

    __slots__ = ("_counts", "_layout", "_open", "_sums", "_usable", "_weak", "_width")

    def __init__(self, layout: "Layout", counts: Ints, gpus_per_node: int | Ints, shut: Flags | None = None) -> None:
        self._layout, self._counts, self._width = layout, counts, gpus_per_node
        self._open = None if shut is None else ~shut
        self._usable: Ints = self._fitting(None)
        self._sums: list[Sums | None] = [None] * layout.node_level
        self._weak: dict[int, tuple[PartCosts, int, WeakRows]] = {}

    def _fitting(self, cells: Ints | None) -> Ints:
        counts = self._counts if cells is None else self._counts[cells]
        width = self._width if cells is None or isinstance(self._width, int) else self._width[cells]
        fits = counts >= width
        if self._open is not None:
            fits &= self._open if cells is None else self._open[cells]
        return np.where(fits, counts, 0)

    @property
    def usable(self) -> Ints:
        return self._usable

    def sums(self, level: int) -> Sums:
        """Of a level above the nodes: there each cell is a group, and ``usable`` says all."""
        sums = self._sums[level]
        if sums is None:
            sums = self._sums[level] = self._count(level)
        return sums

    @property
    def cells(self) -> Ints:
        """Those that fit, in topology order."""
        fitting: Ints = np.flatnonzero(self.usable)
        return fitting

    def most_cells(self, level: int) -> int:
        """That fit in one group."""
        if level == self._layout.node_level:
            return int(self.usable.any())
        return int(self.sums(level).cells[:-1].max(initial=0))

    def cells_in(self, level: int, group: int) -> Ints:
        """Those of the group that fit, in topology order."""
        layout = self._layout
        first, last = int(layout.first_cell[level][group]), int(layout.last_cell[level][group]) + 1
        is_inside = (layout.groups[level][first:last] == group) & (self._between(first, last) > 0)
        inside: Ints = is_inside.nonzero()[0] + first
        return inside

    def numbers(self, level: int) -> Ints:
        """The cells that fit in each group of any level."""
        if level == self._layout.node_level:
            return (self.usable > 0).astype(np.int64)
        numbers: Ints = self.sums(level).cells[:-1]
        return numbers

    def weak_rows(self, parts: PartCosts, level: int) -> WeakRows:
        """Of the cells that fit. They stand until a cost changes, since what does not fit costs nothing."""
        known = self._weak.get(level)
        if known is None or known[0] is not parts or known[1] != parts.version:
            weak = np.flatnonzero(parts.costs)
            rows = weak_rows(self._layout, weak[self.usable[weak] > 0], parts.costs, level)
            known = self._weak[level] = parts, parts.version, rows
        return known[2]

    def most_weak(self, parts: PartCosts, level: int) -> Ints:
        """No group has more cells that fit and cost something."""
        return self.weak_rows(parts, level).numbers

    def follow(self, cells: Ints) -> None:
        """The counts of ``cells``, distinct, have changed."""
        before, after = self._usable[cells], self._fitting(cells)
        is_changed = before != after
        if not is_changed.any():
            return
        cells, before, after = cells[is_changed], before[is_changed], after[is_changed]
        self._usable[cells] = after
        by = (after > 0).astype(np.int64) - (before > 0)
        for level, sums in enumerate(self._sums):
            if sums is not None:
                groups = self._layout.groups[level][cells]
                np.add.at(sums.cells, groups, by)
                np.add.at(sums.gpus, groups, after - before)

    def without(self, cells: Ints) -> "Tally":
        """The same where ``cells``, distinct, cannot be had. It holds until this one follows a change."""
        gone = cells[self.usable[cells] > 0]
        return Without(self, gone) if len(gone) else self

    def _between(self, first: int, last: int) -> Ints:
        """``usable`` of these cells, to be read alone."""
        return self._usable[first:last]

    def _count(self, level: int) -> Sums:
        cells = np.flatnonzero(self.usable)
        size = self._layout.num_groups[level] + 1
        groups = self._layout.groups[level][cells] % size  # that of no known group is the last
        return Sums(
            np.bincount(groups, minlength=size),
            _summed(groups, self.usable[cells], size),
        )


class Without(Tally):
    """A tally without some cells that fit. What is asked of it alone is copied, and not the fleet for each gang."""

    __slots__ = ("_gone", "_whole")

    def __init__(self, whole: Tally, gone: Ints) -> None:
        self._whole, self._gone = whole, gone
        self._layout, self._width = whole._layout, whole._width  # noqa: SLF001  # of its own class
        self._sums = [None] * self._layout.node_level

    @property
    def usable(self) -> Ints:
        if not hasattr(self, "_usable"):
            self._usable = self._whole.usable.copy()
            self._usable[self._gone] = 0
        return self._usable

    def _between(self, first: int, last: int) -> Ints:
        between, gone = self._whole._between(first, last), self._gone  # noqa: SLF001  # of its own class
        inside = gone[(gone >= first) & (gone < last)]
        if len(inside):
            between = between.copy()
            between[inside - first] = 0
        return between

    def weak_rows(self, parts: PartCosts, level: int) -> WeakRows:
        rows, costs = self._whole.weak_rows(parts, level), parts.costs[self._gone]
        if not costs.any():
            return rows
        places, numbers = rows.places.copy(), rows.numbers.copy()
        for cell in self._gone[costs > 0].tolist():
            for row in (rows.cells == cell).nonzero()[0].tolist():  # none where its group is not known
                group = rows.groups[row]
                places[row : rows.groups.searchsorted(group, side="right")] -= 1
                places[row] = NEVER
                numbers[group] -= 1
        return WeakRows(rows.cells, rows.groups, rows.costs, places, numbers)

    def most_weak(self, parts: PartCosts, level: int) -> Ints:
        return self._whole.most_weak(parts, level)

    def numbers(self, level: int) -> Ints:
        if level == self._layout.node_level or self._sums[level] is not None:
            return super().numbers(level)
        groups = self._layout.groups[level][self._gone]
        numbers = self._whole.numbers(level).copy()
        np.subtract.at(numbers, groups[groups >= 0], 1)
        return numbers

    def _count(self, level: int) -> Sums:
        sums, groups = self._whole.sums(level), self._layout.groups[level][self._gone]
        cells, gpus = sums.cells.copy(), sums.gpus.copy()
        # A handful, mostly: by plain numbers sooner than by arrays.
        for group, num_gpus in zip(groups.tolist(), self._whole.usable[self._gone].tolist(), strict=True):
            cells[group] -= 1
            gpus[group] -= num_gpus
        return Sums(cells, gpus)


def least_of(groups: Ints, keys: Ints) -> Ints:
    """Those of ``groups``, one at least, whose key is the least. ``keys``: of each of them."""
    least: Ints = groups[keys == keys.min()]
    return least


def _summed(groups: Ints, weights: Ints, size: int) -> Ints:
    return np.bincount(groups, weights, minlength=size).astype(np.int64)


def weak_rows(layout: "Layout", cells: Ints, costs: Ints, level: int) -> WeakRows:
    """``cells``: of positive cost. At the node level each is a group of its own."""
    groups = layout.groups[level][cells]
    is_known = groups >= 0
    cells, groups = cells[is_known], groups[is_known]
    order = np.lexsort((costs[cells], groups))
    cells, groups = cells[order], groups[order]
    numbers = np.bincount(groups, minlength=layout.num_groups[level])
    return WeakRows(cells, groups, costs[cells], np.arange(len(groups)) - groups.searchsorted(groups), numbers)


class Kept(Protocol):
    """Something counted by cells, which is kept up by those that change."""

    def follow(self, cells: Ints) -> None:
        """``cells``: distinct."""


SomeKept = TypeVar("SomeKept", bound=Kept)


class Tallies:
    """What is kept of one fleet state. ``touch`` notes which cells have changed; who is asked for catches up first."""

    __slots__ = ("_changed", "_kept", "_num_cells", "_seen", "_touched")

    def __init__(self, layout: "Layout") -> None:
        self._num_cells = layout.num_cells
        self._kept: dict[Hashable, Kept] = {}
        self._seen: dict[Hashable, int] = {}
        self._touched: list[Ints] = []
        self._changed: tuple[tuple[int, int], Ints] | None = None

    def touch(self, cells: Ints) -> None:
        if len(self._touched) == MAX_BEHIND:
            self._kept.clear()
            self._seen.clear()
            self._touched.clear()
            self._changed = None
        if self._kept:
            self._touched.append(cells)

    def get(self, key: Hashable, make: Callable[[], SomeKept]) -> SomeKept:
        """``make``: counts anew; equal keys are always of one kind."""
        kept = cast("SomeKept | None", self._kept.get(key))
        if kept is not None and self._seen[key] == len(self._touched):
            return kept
        behind = self._touched[self._seen[key] :] if kept is not None else []
        if kept is None or sum(map(len, behind)) > self._num_cells:
            if kept is None and len(self._kept) == MAX_KEPT:
                oldest = next(iter(self._kept))
                del self._kept[oldest], self._seen[oldest]
            kept = make()
            self._kept[key] = kept
        elif behind:
            kept.follow(self._changed_since(self._seen[key]))
        self._seen[key] = len(self._touched)
        return kept

    def _changed_since(self, number: int) -> Ints:
        """The cells of every change from this one on, distinct and in order."""
        asked = number, len(self._touched)
        if self._changed is None or self._changed[0] != asked:
            is_touched = np.zeros(self._num_cells, dtype=np.bool_)
            for touched in self._touched[number:]:
                is_touched[touched] = True
            self._changed = asked, is_touched.nonzero()[0]
        return self._changed[1]
