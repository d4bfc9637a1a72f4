"""The places of slices of a gang that lost hosts: each in its own domains, or else whole in others.

A slice moves only if its own domain has no other host for a rank that it lost, the narrowest slice of that rank first.
Its ranks keep their numbers, and all other slices their hosts.
"""

from collections.abc import Sequence

import numpy as np

from scheduler.fleet.topology import NOWHERE, Flags, Ints, Layout
from scheduler.solve.placement_rule import Slice
from scheduler.solve.slices import room_by_group


def without_slice(slices: Sequence[Slice], ranks: Sequence[Ints | None], rank: int) -> list[Ints | None] | None:
    """Return ``ranks`` without the hosts of the narrowest slice of ``rank`` that has any; None: no slice of it has."""
    for one in reversed(slices):
        first = rank // one.nodes * one.nodes
        if any(part is not None for part in ranks[first : first + one.nodes]):
            return [*ranks[:first], *[None] * one.nodes, *ranks[first + one.nodes :]]
    return None


class SliceHomes:
    """The domains of slices, by their hosts: a replacement must be in each of its slices' domains."""

    def __init__(self, layout: Layout, slices: Sequence[Slice], ranks: Sequence[Ints | None]) -> None:
        self._layout, self._slices = layout, slices
        self._levels = [(level, one.nodes) for one in slices if (level := layout.level(one.level)) is not None]
        self._homes: dict[tuple[int, int], int] = {}
        for rank, part in enumerate(ranks):
            if part is not None:
                self.settle(rank, int(layout.cell_of_gpu[part[0]]))

    def settle(self, rank: int, cell: int) -> None:
        for level, nodes in self._levels:
            self._homes.setdefault((level, rank // nodes), int(self._layout.groups[level][cell]))

    def num_homeless(self, rank: int) -> int:
        """Return how many slices of this rank have no host left."""
        return sum((level, rank // nodes) not in self._homes for level, nodes in self._levels)

    def admits(self, rank: int, cells: Ints) -> Flags:
        """Return which ``cells``, in topology order, the rank may take."""
        admitted: Flags = np.ones(len(cells), dtype=np.bool_)
        for level, nodes in self._levels:
            groups = self._layout.groups[level][cells]
            home = self._homes.get((level, rank // nodes))
            if home is not None:
                admitted &= groups == home
            else:  # domains with room for the whole slice, in whole narrower slices
                room = room_by_group(self._layout, self._slices, cells, level)
                admitted &= (groups != NOWHERE) & (room[groups] >= nodes)
        return admitted
