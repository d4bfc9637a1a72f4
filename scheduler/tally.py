"""How many cells can give one host's part, by domain: kept up by the cells that change, not counted over the fleet.

One tally stands for each tier and number of GPUs a host, made when somebody first asks. ``FleetState.recount`` over the
whole fleet is its oracle in tests.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scheduler.layout import Layout

Ints = npt.NDArray[np.int64]

MAX_BEHIND: Final = 1_000
"""So many changes are noted for who has not asked since; then each is counted anew."""


@dataclass(frozen=True, slots=True)
class Sums:
    """One entry a group of a level, and a last one for cells of no known group.

    ``cells``: that fit; ``gpus``: usable in those.
    """

    cells: Ints
    gpus: Ints


class Tally:
    """``usable``: the GPUs of each cell that fits, else 0."""

    __slots__ = ("_layout", "_sums", "_usable", "_width")

    def __init__(self, layout: "Layout", counts: Ints, gpus_per_node: int) -> None:
        self._layout, self._width = layout, gpus_per_node
        self._usable: Ints = np.where(counts >= gpus_per_node, counts, 0)
        self._sums: list[Sums | None] = [None] * layout.node_level

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

    def follow(self, cells: Ints, counts: Ints) -> None:
        """``cells``, distinct, have as many usable GPUs now."""
        before = self._usable[cells]
        after = np.where(counts >= self._width, counts, 0)
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

    def _count(self, level: int) -> Sums:
        sums, groups = self._whole.sums(level), self._layout.groups[level][self._gone]
        cells, gpus = sums.cells.copy(), sums.gpus.copy()
        np.subtract.at(cells, groups, 1)
        np.subtract.at(gpus, groups, self._whole.usable[self._gone])
        return Sums(cells, gpus)


def _summed(groups: Ints, weights: Ints, size: int) -> Ints:
    return np.bincount(groups, weights, minlength=size).astype(np.int64)


class Tallies:
    """Those of one fleet state. ``touch`` notes which cells have changed; who is asked for catches up first."""

    __slots__ = ("_layout", "_seen", "_tallies", "_touched")

    def __init__(self, layout: "Layout") -> None:
        self._layout = layout
        self._tallies: dict[tuple[str, int], Tally] = {}
        self._seen: dict[tuple[str, int], int] = {}
        self._touched: list[Ints] = []

    def touch(self, cells: Ints) -> None:
        if len(self._touched) == MAX_BEHIND:
            self._tallies.clear()
            self._seen.clear()
            self._touched.clear()
        if self._tallies:
            self._touched.append(cells)

    def get(self, tier: str, gpus_per_node: int, counts: Ints) -> Tally:
        """``counts``: the usable GPUs of each cell now."""
        key = (tier, gpus_per_node)
        tally = self._tallies.get(key)
        behind = self._touched[self._seen[key] :] if tally is not None else []
        if tally is None or sum(map(len, behind)) > self._layout.num_cells:
            tally = self._tallies[key] = Tally(self._layout, counts, gpus_per_node)
        elif behind:
            is_touched = np.zeros(self._layout.num_cells, dtype=np.bool_)
            for touched in behind:
                is_touched[touched] = True
            cells = np.flatnonzero(is_touched)
            tally.follow(cells, counts[cells])
        self._seen[key] = len(self._touched)
        return tally
