"""The topology tree as arrays in topology order: what of a fleet does not change within a cycle.

A *cell* is the GPUs of one cohort on one node: a gang takes whole parts of cells. Cells lie so that every domain is a
contiguous run. A *group* is one cohort within one domain of a level: the gang's home (I4).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from health.cohorts import part_of_key
from muster.domain.ids import GpuUuid, NodeId
from scheduler.model import DEFAULT_LEVELS, GpuView, Parts
from scheduler.placement_rule import LabelRule, Labels
from scheduler.tally import Ints

Flags = npt.NDArray[np.bool_]

FLEET_LEVEL: Final = "fleet"
NODE_LEVEL: Final = "node"
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
    """What ``scheduler.fences.labelled`` has found: hosts may have each its own labels, and many jobs one rule."""

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


def build_layout(gpus: Sequence[GpuView], levels: Sequence[str] = DEFAULT_LEVELS) -> tuple[Layout, list[GpuView]]:
    """The layout, and the GPUs in its order: by place, node, cohort, slot, UUID, whatever the order given."""
    ordered = _in_order(gpus)
    return _layout(ordered, tuple(gpu.uuid for gpu in ordered), levels), ordered


def layout_by(attributes: Collection[str], ordered: Sequence[GpuView], levels: Sequence[str]) -> Layout:
    """As ``build_layout`` of these GPUs, with the same numbers for them, and told apart by these attributes alone."""
    known: dict[str, str] = {}
    for gpu in ordered:
        if gpu.cohort_key not in known:
            known[gpu.cohort_key] = part_of_key(gpu.cohort_key, attributes)
    alike = [replace(gpu, cohort_key=known[gpu.cohort_key]) for gpu in ordered]
    return _layout(_in_order(alike), tuple(gpu.uuid for gpu in ordered), levels)


def _in_order(gpus: Iterable[GpuView]) -> list[GpuView]:
    return sorted(gpus, key=lambda gpu: (gpu.path, gpu.node_id, gpu.cohort_key, gpu.slot_index, gpu.uuid))


def _layout(ordered: Sequence[GpuView], uuids: tuple[GpuUuid, ...], levels: Sequence[str]) -> Layout:
    """``ordered``: by cell; ``uuids``: as they are numbered."""
    cohorts = {key: index for index, key in enumerate(sorted({gpu.cohort_key for gpu in ordered}))}
    heads, cell_start = _heads(ordered)
    cell_size = np.diff(np.append(cell_start, len(ordered)))
    health_cost = np.array([gpu.health_cost for gpu in ordered], dtype=np.int64)
    label_sets = {labels: number for number, labels in enumerate(sorted({head.labels for head in heads}))}
    groups = _groups_by_level(heads, len(levels))
    num_groups = tuple(int(group.max(initial=NOWHERE)) + 1 for group in groups)
    cell_cohort = np.array([cohorts[head.cohort_key] for head in heads], dtype=np.int64)
    host_widths, width_of_cell = _widths(cell_cohort, cell_size)
    index_of = {uuid: index for index, uuid in enumerate(uuids)}
    by_cell = np.array([index_of[gpu.uuid] for gpu in ordered], dtype=np.int64)
    cell_health_cost = np.maximum.reduceat(health_cost, cell_start) if heads else health_cost
    return Layout(
        levels=(FLEET_LEVEL, *levels, NODE_LEVEL),
        level_of={name: number for number, name in enumerate((*levels, NODE_LEVEL), start=1)},
        node_level=len(levels) + 1,
        uuids=uuids,
        index_of=index_of,
        by_cell=by_cell,
        cell_of_gpu=_by_gpu(by_cell, np.arange(len(heads), dtype=np.int64).repeat(cell_size)),
        cell_start=cell_start,
        cell_size=cell_size,
        gpu_table=_by_rows(by_cell, cell_size),
        even_size=_even_size(cell_size),
        cell_node=tuple(head.node_id for head in heads),
        whole_parts=_whole_parts(ordered, heads, cell_start),
        cohort_keys=tuple(cohorts),
        cell_cohort=cell_cohort,
        cell_health_cost=cell_health_cost,
        gpu_health_cost=_by_gpu(by_cell, health_cost),
        weak_cells=cell_health_cost.nonzero()[0],
        label_sets=tuple(label_sets),
        cell_label_set=np.array([label_sets[head.labels] for head in heads], dtype=np.int64),
        cells_of_node=_cells_of_node(heads),
        groups=tuple(groups),
        first_cell=tuple(map(_first_cells, groups, num_groups)),
        last_cell=tuple(map(_last_cells, groups, num_groups)),
        unknown_cells=tuple(np.flatnonzero(group == NOWHERE) for group in groups),
        has_unknown=any((group == NOWHERE).any() for group in groups),
        num_groups=num_groups,
        largest=tuple(int(np.bincount(group[group >= 0]).max(initial=0)) for group in groups),
        host_widths=host_widths,
        width_of_cell=width_of_cell,
    )


def _heads(ordered: Sequence[GpuView]) -> tuple[list[GpuView], Ints]:
    """The first GPU of each cell, and where among all of them it stands."""
    heads: list[GpuView] = []
    starts: list[int] = []
    for index, gpu in enumerate(ordered):
        head = heads[-1] if heads else None
        if head is None or (gpu.node_id, gpu.cohort_key, gpu.path) != (head.node_id, head.cohort_key, head.path):
            heads.append(gpu)
            starts.append(index)
    return heads, np.array(starts, dtype=np.int64)


def _whole_parts(ordered: Sequence[GpuView], heads: Sequence[GpuView], cell_start: Ints) -> Parts:
    names = tuple(gpu.uuid for gpu in ordered)
    bounds = [*cell_start.tolist(), len(names)]
    return tuple((head.node_id, names[start:end]) for head, (start, end) in zip(heads, pairwise(bounds), strict=True))


def _cells_of_node(heads: Sequence[GpuView]) -> dict[NodeId, tuple[int, ...]]:
    cells: dict[NodeId, tuple[int, ...]] = {}
    for cell, head in enumerate(heads):
        cells[head.node_id] = (*cells.get(head.node_id, ()), cell)
    return cells


def _groups_by_level(heads: Sequence[GpuView], num_levels: int) -> list[Ints]:
    """Of the fleet, of each level, and of the nodes, of which each is one by itself."""
    return [*(_groups(heads, depth) for depth in range(num_levels + 1)), np.arange(len(heads), dtype=np.int64)]


def _even_size(size: Ints) -> int | None:
    """That all cells have."""
    return int(size[0]) if len(size) and (size == size[0]).all() else None


def _by_gpu(by_cell: Ints, values: Ints) -> Ints:
    """``values``: in the order of ``by_cell``."""
    found = np.zeros(len(by_cell), dtype=np.int64)
    found[by_cell] = values
    return found


def _by_rows(by_cell: Ints, size: Ints) -> Ints:
    """A row a cell, as wide as the largest, filled up with ``NOWHERE``."""
    table = np.full((len(size), int(size.max(initial=0))), NOWHERE, dtype=np.int64)
    table[np.arange(table.shape[1]) < size[:, None]] = by_cell
    return table


def _widths(cohort: Ints, size: Ints) -> tuple[tuple[int, ...], Ints]:
    """The commonest size in each cell's cohort, the larger of equals: all there are, and which of them it is."""
    usual = np.zeros(int(cohort.max(initial=NOWHERE)) + 1, dtype=np.int64)
    for one in range(len(usual)):
        numbers = np.bincount(size[cohort == one])
        usual[one] = len(numbers) - 1 - int(numbers[::-1].argmax())
    widths, width_of_cohort = np.unique(usual, return_inverse=True)
    return tuple(widths.tolist()), width_of_cohort[cohort]


def _groups(heads: Sequence[GpuView], depth: int) -> Ints:
    """The group of each cell by the first ``depth`` names of its path; domains are told by the whole path."""
    known: dict[tuple[tuple[str, ...], str], int] = {}
    groups = []
    for head in heads:
        domain = head.path[:depth]
        is_known = len(domain) == depth and (not depth or bool(domain[-1]))
        groups.append(known.setdefault((domain, head.cohort_key), len(known)) if is_known else NOWHERE)
    return np.array(groups, dtype=np.int64)


def _first_cells(groups: Ints, num_groups: int) -> Ints:
    first = np.zeros(num_groups, dtype=np.int64)
    cells = np.flatnonzero(groups >= 0)[::-1]
    first[groups[cells]] = cells
    return first


def _last_cells(groups: Ints, num_groups: int) -> Ints:
    last = np.zeros(num_groups, dtype=np.int64)
    cells = np.flatnonzero(groups >= 0)
    last[groups[cells]] = cells
    return last
