"""The topology tree as arrays in topology order: what does not change within a cycle.

A *cell* is the GPUs of one cohort on one node: a gang takes whole parts of cells. Cells are ordered so that every
domain is a contiguous run. A *group* is one cohort within one domain of a level: the gang's home (I4).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from muster.domain.ids import GpuUuid, NodeId
from scheduler.fleet.tally import Ints
from scheduler.model import Parts
from scheduler.solve.placement_rule import LabelRule, Labels

Flags = npt.NDArray[np.bool_]

NOWHERE: Final = -1
"""The group of a cell whose node has no known place at a level."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """The groups of a level by the groups of a wider level that contain them.

    ``inner``: the inner groups within known wider ones, in the order of the wider ones; all of them as a slice if they
    are in that order already, since a slice copies nothing. ``first``: where the inner groups of each wider one begin
    in that order; ``filled``: the wider ones that contain any. ``keys``: for each inner group a number by its wider
    one, so far from the next that the inner group's cells can be subtracted from it. Keys have 32 bits if these
    suffice, which are sorted in a third of the time.
    """

    inner: Ints | slice
    first: Ints
    filled: Ints
    keys: npt.NDArray[np.signedinteger]

    def summed_up(self, numbers: Ints) -> Ints:
        """Return the sum over the inner groups of each wider one."""
        sums = np.zeros(len(self.first), dtype=np.int64)
        if len(self.filled):
            sums[self.filled] = np.add.reduceat(numbers[self.inner], self.first[self.filled])
        return sums


@dataclass(frozen=True, slots=True)
class Layout:
    """The arrays of one fleet; ``groups`` and the fields after it have one entry a level.

    ``by_cell``: the GPUs by their cell, then by slot; ``cell_start`` and ``cell_size`` give a cell's part of it.
    ``gpu_table``: the same, a row a cell, filled up with ``NOWHERE`` unless all are ``even_size``. ``whole_parts``:
    each cell's node, and the names of its GPUs.
    """

    levels: tuple[str, ...]
    level_of: Mapping[str, int]
    node_level: int
    uuids: tuple[GpuUuid, ...]
    index_of: Mapping[GpuUuid, int]
    by_cell: Ints
    cell_of_gpu: Ints
    cell_start: Ints
    cell_size: Ints
    gpu_table: Ints
    even_size: int | None
    cell_node: tuple[NodeId, ...]
    whole_parts: Parts
    cell_cohort: Ints
    cohort_keys: tuple[str, ...]
    cell_health_cost: Ints
    gpu_health_cost: Ints
    weak_cells: Ints
    label_sets: tuple[Labels, ...]
    cell_label_set: Ints
    cells_of_node: Mapping[NodeId, tuple[int, ...]]
    largest_host: int
    """The most GPUs that any host has, of whatever cohort."""
    groups: tuple[Ints, ...]
    first_cell: tuple[Ints, ...]
    last_cell: tuple[Ints, ...]
    unknown_cells: tuple[Ints, ...]
    has_unknown: bool
    num_groups: tuple[int, ...]
    largest: tuple[int, ...]
    host_widths: tuple[int, ...]
    """The GPUs that most hosts of a cohort have, of every cohort; ``width_of_cell`` is the index of each cell's."""
    width_of_cell: Ints
    admitted_by: dict[LabelRule, Flags] = field(default_factory=dict)
    """Results of ``scheduler.solve.node_filter.labelled``: hosts may differ in labels, and many jobs share a rule."""

    sets_by_label: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """The label sets, by number, that have each label with this value; made when first read."""

    arounds: dict[tuple[int, int], Ints] = field(default_factory=dict)
    """Results of ``around``."""
    nestings: dict[tuple[int, int], Nesting] = field(default_factory=dict)

    @property
    def whole_size(self) -> Ints:
        """Return for each cell the usable GPUs with which it is like most of its cohort and wholly free."""
        sizes: Ints = np.array(self.host_widths, dtype=np.int64)[self.width_of_cell]
        return sizes

    def around(self, level: int, wider: int) -> Ints:
        """Return the group of ``wider`` that contains each group of ``level``; ``NOWHERE`` if unknown."""
        found = self.arounds.get((level, wider))
        if found is None:
            found = self.arounds[level, wider] = self.groups[wider][self.first_cell[level]]
        return found

    def nesting(self, level: int, wider: int) -> Nesting:
        """Return how groups of ``wider`` contain the groups of ``level``; it is kept as ``around`` is."""
        found = self.nestings.get((level, wider))
        if found is None:
            around = self.around(level, wider)
            found = nesting_of(around, self.num_groups[wider], self.largest[level])
            self.nestings[level, wider] = found
        return found

    @property
    def has_weak(self) -> bool:
        """Return whether any GPU is less sound than others."""
        return len(self.weak_cells) > 0

    @property
    def num_cells(self) -> int:
        return len(self.cell_node)

    def level(self, name: str) -> int | None:
        """Return the number of the level; None for the fleet itself, and for a level that it does not have."""
        return self.level_of.get(name)

    def gpu_indices(self, uuids: Iterable[GpuUuid]) -> Ints:
        """Return the indices of the GPUs that the fleet has, in the given order."""
        found = list(map(self.index_of.get, uuids))
        known = [index for index in found if index is not None] if None in found else found
        return np.fromiter(known, dtype=np.int64, count=len(known))

    def gpus_of_cells(self, cells: Ints) -> Ints:
        gpus: Ints = self.gpu_table[cells].ravel()
        return gpus if self.even_size is not None else gpus[gpus != NOWHERE]

    def is_whole(self, gpus_per_node: int | Ints) -> bool:
        """Return whether each cell with so many usable GPUs gives all its GPUs."""
        return isinstance(gpus_per_node, int) and gpus_per_node == self.even_size

    def num_gpus_of(self, cells: Ints) -> int:
        return int(self.cell_size[cells].sum()) if self.even_size is None else len(cells) * self.even_size


def nesting_of(around: Ints, num_wider: int, most: int) -> Nesting:
    """Return the nesting of a level's groups.

    ``around``: the wider group that contains each group, or ``NOWHERE``; ``most``: the most cells of any group.
    """
    num_unknown = np.count_nonzero(around == NOWHERE)
    inner = around.argsort(kind="stable")[num_unknown:]
    outer = around[inner]
    first = outer.searchsorted(np.arange(num_wider))
    filled = np.bincount(outer, minlength=num_wider).nonzero()[0]
    keys = (outer + 1) * (most + 1)
    is_in_order = len(inner) == len(around) and bool((inner == np.arange(len(inner))).all())
    return Nesting(
        inner=slice(None) if is_in_order else inner,
        first=first,
        filled=filled,
        keys=keys.astype(np.int32 if (num_wider + 1) * (most + 1) < np.iinfo(np.int32).max else np.int64),
    )
