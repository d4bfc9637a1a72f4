"""The topology tree as arrays in topology order: what of a fleet does not change within a cycle.

A *cell* is the GPUs of one cohort on one node: a gang takes whole parts of cells. Cells lie so that every domain is a
contiguous run. A *group* is one cohort within one domain of a level: the gang's home (I4).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
class Layout:
    """``groups`` and what follows it: one entry a level.

    ``by_cell``: the GPUs by their cell, then by slot; ``cell_start`` and ``cell_size`` say which of it are a cell's.
    ``whole_parts``: each cell's node, and the names of its GPUs.
    """

    levels: tuple[str, ...]
    uuids: tuple[GpuUuid, ...]
    index_of: Mapping[GpuUuid, int]
    by_cell: Ints
    cell_of_gpu: Ints
    cell_start: Ints
    cell_size: Ints
    cell_node: tuple[NodeId, ...]
    whole_parts: Parts
    cell_cohort: Ints
    cohort_keys: tuple[str, ...]
    cell_health_cost: Ints
    gpu_health_cost: Ints
    label_sets: tuple[Labels, ...]
    cell_label_set: Ints
    cells_of_node: Mapping[NodeId, tuple[int, ...]]
    groups: tuple[Ints, ...]
    first_cell: tuple[Ints, ...]
    last_cell: tuple[Ints, ...]
    unknown_cells: tuple[Ints, ...]
    num_groups: tuple[int, ...]
    largest: tuple[int, ...]
    has_weak: bool
    """Whether any GPU is less sound than others."""
    host_widths: tuple[int, ...]
    """The GPUs that most hosts of a cohort have, of every cohort; ``width_of_cell`` says which one is a cell's."""
    width_of_cell: Ints
    admitted_by: dict[LabelRule, Flags] = field(default_factory=dict)
    """What ``scheduler.fences.labelled`` has found: hosts may have each its own labels, and many jobs one rule."""

    arounds: dict[tuple[int, int], Ints] = field(default_factory=dict)
    """What ``around`` has found."""

    @property
    def node_level(self) -> int:
        return len(self.levels) - 1

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

    @property
    def num_cells(self) -> int:
        return len(self.cell_node)

    def level(self, name: str) -> int | None:
        return self.levels.index(name) if name in self.levels[1:] else None

    def gpu_indices(self, uuids: Iterable[GpuUuid]) -> Ints:
        """Those that the fleet knows, in the order given."""
        found = map(self.index_of.get, uuids)
        return np.array([index for index in found if index is not None], dtype=np.int64)

    def gpus_of_cells(self, cells: Ints) -> Ints:
        sizes = self.cell_size[cells]
        ends = sizes.cumsum()
        places = (self.cell_start[cells] - (ends - sizes)).repeat(sizes) + np.arange(ends[-1] if len(ends) else 0)
        gpus: Ints = self.by_cell[places]
        return gpus


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
    heads: list[GpuView] = []
    starts: list[int] = []
    for index, gpu in enumerate(ordered):
        head = heads[-1] if heads else None
        if head is None or (gpu.node_id, gpu.cohort_key, gpu.path) != (head.node_id, head.cohort_key, head.path):
            heads.append(gpu)
            starts.append(index)
    cell_start = np.array(starts, dtype=np.int64)
    cell_size = np.diff(np.append(cell_start, len(ordered)))
    names = tuple(gpu.uuid for gpu in ordered)
    health_cost = np.array([gpu.health_cost for gpu in ordered], dtype=np.int64)
    by_node: dict[NodeId, tuple[int, ...]] = {}
    for cell, head in enumerate(heads):
        by_node[head.node_id] = (*by_node.get(head.node_id, ()), cell)
    label_sets = {labels: number for number, labels in enumerate(sorted({head.labels for head in heads}))}
    groups = [_groups(heads, depth) for depth in range(len(levels) + 1)]
    groups.append(np.arange(len(heads), dtype=np.int64))
    num_groups = tuple(int(group.max(initial=NOWHERE)) + 1 for group in groups)
    cell_cohort = np.array([cohorts[head.cohort_key] for head in heads], dtype=np.int64)
    host_widths, width_of_cell = _widths(cell_cohort, cell_size)
    index_of = {uuid: index for index, uuid in enumerate(uuids)}
    by_cell = np.array([index_of[gpu.uuid] for gpu in ordered], dtype=np.int64)
    cell_of_gpu, gpu_health_cost = np.zeros((2, len(uuids)), dtype=np.int64)
    cell_of_gpu[by_cell] = np.repeat(np.arange(len(heads), dtype=np.int64), cell_size)
    gpu_health_cost[by_cell] = health_cost
    return Layout(
        levels=(FLEET_LEVEL, *levels, NODE_LEVEL),
        uuids=uuids,
        index_of=index_of,
        by_cell=by_cell,
        cell_of_gpu=cell_of_gpu,
        cell_start=cell_start,
        cell_size=cell_size,
        cell_node=tuple(head.node_id for head in heads),
        whole_parts=tuple(
            (head.node_id, names[start : start + size])
            for head, start, size in zip(heads, starts, cell_size.tolist(), strict=True)
        ),
        cohort_keys=tuple(cohorts),
        cell_cohort=cell_cohort,
        cell_health_cost=np.maximum.reduceat(health_cost, cell_start) if heads else health_cost,
        gpu_health_cost=gpu_health_cost,
        label_sets=tuple(label_sets),
        cell_label_set=np.array([label_sets[head.labels] for head in heads], dtype=np.int64),
        cells_of_node=by_node,
        groups=tuple(groups),
        first_cell=tuple(map(_first_cells, groups, num_groups)),
        last_cell=tuple(map(_last_cells, groups, num_groups)),
        unknown_cells=tuple(np.flatnonzero(group == NOWHERE) for group in groups),
        num_groups=num_groups,
        largest=tuple(int(np.bincount(group[group >= 0]).max(initial=0)) for group in groups),
        has_weak=bool(health_cost.any()),
        host_widths=host_widths,
        width_of_cell=width_of_cell,
    )


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
