"""The topology tree as arrays in topology order: what of a fleet does not change within a cycle.

A *cell* is the GPUs of one cohort on one node: a gang takes whole parts of cells. Cells lie so that every domain is a
contiguous run. A *group* is one cohort within one domain of a level: the gang's home (I4).
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
    """``inner``: the groups of a level that lie in known ones of a wider level, in the order of these; all, as a slice,
    where they stand so already, since that copies nothing.

    ``first``: where those of each wider one begin in that order; ``filled``: the wider ones that have any. ``keys``:
    of each inner one a number by its wider one, so far from the next that the inner one's cells can be taken from it;
    of 32 bits where these suffice, which are sorted in a third of the time.
    """

    inner: Ints | slice
    first: Ints
    filled: Ints
    keys: npt.NDArray[np.signedinteger]

    def summed_up(self, numbers: Ints) -> Ints:
        """What the inner groups of each wider one have together."""
        sums = np.zeros(len(self.first), dtype=np.int64)
        if len(self.filled):
            sums[self.filled] = np.add.reduceat(numbers[self.inner], self.first[self.filled])
        return sums


@dataclass(frozen=True, slots=True)
class Layout:
    """``groups`` and what follows it: one entry a level.

    ``by_cell``: the GPUs by their cell, then by slot; ``cell_start`` and ``cell_size`` say which of it are a cell's.
    ``gpu_table``: the same, a row a cell, filled up with ``NOWHERE`` where not all are ``even_size``.
    ``whole_parts``: each cell's node, and the names of its GPUs.
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
    groups: tuple[Ints, ...]
    first_cell: tuple[Ints, ...]
    last_cell: tuple[Ints, ...]
    unknown_cells: tuple[Ints, ...]
    has_unknown: bool
    num_groups: tuple[int, ...]
    largest: tuple[int, ...]
    host_widths: tuple[int, ...]
    """The GPUs that most hosts of a cohort have, of every cohort; ``width_of_cell`` says which one is a cell's."""
    width_of_cell: Ints
    admitted_by: dict[LabelRule, Flags] = field(default_factory=dict)
    """What ``scheduler.solve.node_filter.labelled`` has found: hosts may have each its own labels, and many jobs one
    rule.
    """

    arounds: dict[tuple[int, int], Ints] = field(default_factory=dict)
    """What ``around`` has found."""
    nestings: dict[tuple[int, int], Nesting] = field(default_factory=dict)

    @property
    def whole_size(self) -> Ints:
        """Of each cell, with how many usable GPUs it is one like most of its cohort and wholly free."""
        sizes: Ints = np.array(self.host_widths, dtype=np.int64)[self.width_of_cell]
        return sizes

    def around(self, level: int, wider: int) -> Ints:
        """In which group of ``wider`` each one of ``level`` lies; ``NOWHERE`` where that is not known."""
        found = self.arounds.get((level, wider))
        if found is None:
            found = self.arounds[level, wider] = self.groups[wider][self.first_cell[level]]
        return found

    def nesting(self, level: int, wider: int) -> Nesting:
        """How the groups of ``level`` lie in those of ``wider``; it is kept as ``around`` is."""
        found = self.nestings.get((level, wider))
        if found is None:
            around = self.around(level, wider)
            found = nesting_of(around, self.num_groups[wider], self.largest[level])
            self.nestings[level, wider] = found
        return found

    @property
    def has_weak(self) -> bool:
        """Whether any GPU is less sound than others."""
        return len(self.weak_cells) > 0

    @property
    def num_cells(self) -> int:
        return len(self.cell_node)

    def level(self, name: str) -> int | None:
        """None: of the fleet itself, or of no level that this one has."""
        return self.level_of.get(name)

    def gpu_indices(self, uuids: Iterable[GpuUuid]) -> Ints:
        """Those that the fleet knows, in the order given."""
        found = list(map(self.index_of.get, uuids))
        known = [index for index in found if index is not None] if None in found else found
        return np.fromiter(known, dtype=np.int64, count=len(known))

    def gpus_of_cells(self, cells: Ints) -> Ints:
        gpus: Ints = self.gpu_table[cells].ravel()
        return gpus if self.even_size is not None else gpus[gpus != NOWHERE]

    def is_whole(self, gpus_per_node: int | Ints) -> bool:
        """Whether each cell that has so many usable GPUs gives all of its own."""
        return isinstance(gpus_per_node, int) and gpus_per_node == self.even_size

    def num_gpus_of(self, cells: Ints) -> int:
        return int(self.cell_size[cells].sum()) if self.even_size is None else len(cells) * self.even_size


def nesting_of(around: Ints, num_wider: int, most: int) -> Nesting:
    """``around``: of each group of a level the wider one that it lies in, or ``NOWHERE``; ``most``: cells, of any."""
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
