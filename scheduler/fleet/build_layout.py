"""The layout of a fleet: its GPUs in order, cell by cell, and the arrays of each level."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from health.cohort.cohorts import part_of_key
from muster.domain.gpu.levels import FLEET_LEVEL, NODE_LEVEL
from muster.domain.ids import GpuUuid, NodeId
from scheduler.fleet.layout import NOWHERE, Layout
from scheduler.fleet.tally import Ints
from scheduler.model import DEFAULT_LEVELS, GpuView, Parts


def build_layout(gpus: Sequence[GpuView], levels: Sequence[str] = DEFAULT_LEVELS) -> tuple[Layout, list[GpuView]]:
    """Return the layout, and the GPUs in its order: by place, node, cohort, slot, UUID, whatever the given order."""
    ordered = _in_order(gpus)
    return _layout(ordered, tuple(gpu.uuid for gpu in ordered), levels), ordered


def layout_by(attributes: Collection[str], ordered: Sequence[GpuView], levels: Sequence[str]) -> Layout:
    """Return the layout of the same GPUs with the same numbers, where these attributes alone distinguish cohorts."""
    known: dict[str, str] = {}
    for gpu in ordered:
        if gpu.cohort_key not in known:
            known[gpu.cohort_key] = part_of_key(gpu.cohort_key, attributes)
    alike = [replace(gpu, cohort_key=known[gpu.cohort_key]) for gpu in ordered]
    return _layout(_in_order(alike), tuple(gpu.uuid for gpu in ordered), levels)


def _in_order(gpus: Iterable[GpuView]) -> list[GpuView]:
    return sorted(gpus, key=lambda gpu: (gpu.path, gpu.node_id, gpu.cohort_key, gpu.slot_index, gpu.uuid))


def _layout(ordered: Sequence[GpuView], uuids: tuple[GpuUuid, ...], levels: Sequence[str]) -> Layout:
    """Return the layout. ``ordered``: the GPUs by cell; ``uuids``: in the order of their numbers."""
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
        largest_host=max(Counter(gpu.node_id for gpu in ordered).values(), default=0),
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
    """Return the first GPU of each cell, and its index in the order."""
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
    """Return the group of each cell: for the fleet, for each level, and for the nodes, where each is its own group."""
    return [*(_groups(heads, depth) for depth in range(num_levels + 1)), np.arange(len(heads), dtype=np.int64)]


def _even_size(size: Ints) -> int | None:
    """Return the size that all cells have; None if they differ."""
    return int(size[0]) if len(size) and (size == size[0]).all() else None


def _by_gpu(by_cell: Ints, values: Ints) -> Ints:
    """Return the values by GPU number. ``values``: in the order of ``by_cell``."""
    found = np.zeros(len(by_cell), dtype=np.int64)
    found[by_cell] = values
    return found


def _by_rows(by_cell: Ints, size: Ints) -> Ints:
    """Return a row a cell, as wide as the largest cell, filled up with ``NOWHERE``."""
    table = np.full((len(size), int(size.max(initial=0))), NOWHERE, dtype=np.int64)
    table[np.arange(table.shape[1]) < size[:, None]] = by_cell
    return table


def _widths(cohort: Ints, size: Ints) -> tuple[tuple[int, ...], Ints]:
    """Return all usual sizes of cohorts, and for each cell the index of its cohort's usual size.

    The usual size is the commonest one in the cohort, the larger of equally common ones.
    """
    usual = np.zeros(int(cohort.max(initial=NOWHERE)) + 1, dtype=np.int64)
    for one in range(len(usual)):
        numbers = np.bincount(size[cohort == one])
        usual[one] = len(numbers) - 1 - int(numbers[::-1].argmax())
    widths, width_of_cohort = np.unique(usual, return_inverse=True)
    return tuple(widths.tolist()), width_of_cohort[cohort]


def _groups(heads: Sequence[GpuView], depth: int) -> Ints:
    """Return the group of each cell by the first ``depth`` names of its path; the whole path distinguishes domains."""
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
