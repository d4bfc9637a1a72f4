"""The topology tree and the fleet's state as arrays in topology order.

A *cell* is the GPUs of one cohort on one node: a gang takes whole parts of cells. Cells lie so that every domain is a
contiguous run. A *group* is one cohort within one domain of a level: the gang's home (I4).

A tier whose gangs need be alike in less has a layout of its own, of fewer and larger cells. The numbers of GPUs are the
same in each, those of cells and groups are not: whoever is about a tier's cells asks ``FleetState.for_tier`` first.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from health.admission import AdmissionFacts, Refusal, refusal_of
from health.cohorts import part_of_key
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy import Policy
from scheduler.model import DEFAULT_LEVELS, GpuView, Parts
from scheduler.placement_rule import LabelRule, Labels
from scheduler.tally import Ints as Ints  # noqa: PLC0414  # every room of the core has it from here
from scheduler.tally import Tallies, Tally

Flags = npt.NDArray[np.bool_]

FLEET_LEVEL: Final = "fleet"
NODE_LEVEL: Final = "node"
NEVER_MS: Final = int(np.iinfo(np.int64).max)
NOWHERE: Final = -1
"""The group of a cell whose node has no known place at a level."""

REFUSALS: Final = tuple(Refusal)
_ADMITTED: Final = len(REFUSALS)
_HELD: Final = REFUSALS.index(Refusal.HELD)


@dataclass(frozen=True, slots=True)
class Layout:
    """What of the fleet does not change within a cycle. ``groups`` and what follows it: one entry a level.

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
    admitted_by: dict[LabelRule, Flags] = field(default_factory=dict)
    """What ``scheduler.solver.has_labels`` has found: hosts may have each its own labels, and many jobs one rule."""

    @property
    def node_level(self) -> int:
        return len(self.levels) - 1

    @property
    def num_cells(self) -> int:
        return len(self.cell_node)

    def level(self, name: str) -> int | None:
        return self.levels.index(name) if name in self.levels[1:] else None

    def gpu_indices(self, uuids: Iterable[GpuUuid]) -> Ints:
        """Those that the fleet knows, in the order given."""
        return np.array([self.index_of[uuid] for uuid in uuids if uuid in self.index_of], dtype=np.int64)

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
        cell_cohort=np.array([cohorts[head.cohort_key] for head in heads], dtype=np.int64),
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
    )


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


def _told_apart(facts: Sequence[AdmissionFacts]) -> tuple[Ints, tuple[AdmissionFacts, ...]]:
    """The number of each, and the distinct ones. Many are one object, which is told by its identity sooner."""
    known: dict[AdmissionFacts, int] = {}
    by_object: dict[int, int] = {}
    for one in facts:
        if id(one) not in by_object:
            by_object[id(one)] = known.setdefault(one, len(known))
    return np.array([by_object[id(one)] for one in facts], dtype=np.int64), tuple(known)


@dataclass(frozen=True, slots=True)
class TierView:
    """The fleet in the eyes of one tier: ``admitted`` a GPU apart from being held, ``counts`` usable GPUs a cell of the
    tier's own ``layout``.

    ``refused``: GPUs by cell and refusal; ``admitted_counts``: those of each cell that are not refused, free or not.
    """

    layout: Layout
    admitted: Flags
    refusals: Ints
    counts: Ints
    refused: Ints
    admitted_counts: Ints


class FleetState:
    """A layout, and which GPUs are free in it. ``take`` and ``give`` undo each other: what-if is take, look, give.

    ``was_held``: the GPUs that were held when the state was made, whatever was taken and given since. ``is_spare``:
    kept for gangs that lose hosts. ``cell_closes_ms``: when planned work begins there.
    """

    __slots__ = (
        "_closings",
        "_distinct",
        "_facts",
        "_levels",
        "_of_rule",
        "_ordered",
        "_tallies",
        "_tiers",
        "cell_closes_ms",
        "is_free",
        "is_spare",
        "layout",
        "policy",
        "was_held",
    )

    def __init__(self, gpus: Sequence[GpuView], policy: Policy, levels: Sequence[str] | None = None) -> None:
        self._levels = policy.placement.levels if levels is None else levels
        self.layout, self._ordered = build_layout(gpus, self._levels)
        self._facts, self._distinct = _told_apart([gpu.facts for gpu in self._ordered])
        is_held = np.array([facts.is_held for facts in self._distinct], dtype=np.bool_)
        self.was_held: Flags = is_held[self._facts]
        self.is_free: Flags = ~self.was_held
        self.policy = policy
        self._tiers: dict[str, TierView] = {}
        self._tallies = Tallies(self.layout)
        self.is_spare: Flags = np.zeros(len(self._ordered), dtype=np.bool_)
        self._closings: dict[NodeId, int] = {}
        self.cell_closes_ms: Ints = _closes_ms(self.layout, self._closings)
        self._of_rule: dict[frozenset[str] | None, FleetState] = {None: self}

    def for_tier(self, name: str) -> "FleetState":
        """The very same fleet, laid out by what the tier asks of its gangs: what one of them takes is gone for all.

        Raises ``KeyError`` for a tier that the policy does not define.
        """
        rule = self.policy.homogeneity(name)
        found = self._of_rule.get(rule)
        if found is None:
            found = self._of_rule[rule] = self._laid_out_by(rule or frozenset())
        return found

    def _laid_out_by(self, rule: frozenset[str]) -> "FleetState":
        other = copy(self)
        other.layout = layout_by(rule, self._ordered, self._levels)
        other._tallies = Tallies(other.layout)  # noqa: SLF001  # of its own class
        other.cell_closes_ms = _closes_ms(other.layout, self._closings)
        return other

    def close(self, closings: Mapping[NodeId, int]) -> None:
        """From these moments on nobody may be on these nodes, for planned work."""
        self._closings.clear()
        self._closings.update(closings)
        for each in self._of_rule.values():
            each.cell_closes_ms = _closes_ms(each.layout, self._closings)

    def last_closing_ms(self, end_ms: float) -> int | None:
        """The last closing before ``end_ms``; None: none. Who ends between the same two may go to the same nodes."""
        before = self.cell_closes_ms[self.cell_closes_ms < min(end_ms, NEVER_MS)]
        return int(before.max()) if len(before) else None

    def tier(self, name: str) -> TierView:
        """Raises ``KeyError`` for a tier that the policy does not define."""
        if name not in self._tiers:
            self._tiers[name] = self._make_tier(name)
        return self._tiers[name]

    def usable(self, name: str) -> Flags:
        usable: Flags = self.tier(name).admitted & self.is_free
        return usable

    def tally(self, name: str, gpus_per_node: int) -> Tally:
        """Of what is usable to the tier now."""
        tallies = self.for_tier(name)._tallies  # noqa: SLF001  # of its own class
        return tallies.get(name, gpus_per_node, self.tier(name).counts)

    def recount(self, name: str) -> Ints:
        """The usable GPUs of each cell counted anew, over the whole fleet: the oracle of the kept counts."""
        tier = self.tier(name)
        return _count(tier.layout, tier.admitted & self.is_free)

    def refused(self, name: str) -> dict[Refusal, int]:
        """How many GPUs this tier cannot take now, by reason."""
        tier = self.tier(name)
        numbers = tier.refused.sum(axis=0)
        numbers[_HELD] += tier.admitted_counts.sum() - tier.counts.sum()
        return {refusal: int(number) for refusal, number in zip(REFUSALS, numbers, strict=False) if number}

    def take(self, gpus: Ints) -> None:
        """``gpus``: distinct indices, all free."""
        self.is_free[gpus] = False
        self._adjust(gpus, -1)

    def give(self, gpus: Ints) -> None:
        """``gpus``: distinct indices, none free."""
        self.is_free[gpus] = True
        self._adjust(gpus, 1)

    def _adjust(self, gpus: Ints, sign: int) -> None:
        cells_by = {id(each.layout): each.layout.cell_of_gpu[gpus] for each in self._of_rule.values()}
        for tier in self._tiers.values():
            np.add.at(tier.counts, cells_by[id(tier.layout)][tier.admitted[gpus]], sign)
        for each in self._of_rule.values():
            each._tallies.touch(cells_by[id(each.layout)])  # noqa: SLF001  # of its own class

    def _make_tier(self, name: str) -> TierView:
        verdicts = [refusal_of(facts, self.policy.tier(name)) for facts in self._distinct]
        codes = [_ADMITTED if verdict in {None, Refusal.HELD} else REFUSALS.index(verdict) for verdict in verdicts]
        refusals = np.array(codes, dtype=np.int64)[self._facts] if codes else self._facts
        admitted: Flags = refusals == _ADMITTED
        layout = self.for_tier(name).layout
        num_cells, size = layout.num_cells, _ADMITTED + 1
        numbers = np.bincount(layout.cell_of_gpu * size + refusals, minlength=num_cells * size)
        by_cell = numbers.reshape(num_cells, size)
        counts = _count(layout, admitted & self.is_free)
        return TierView(layout, admitted, refusals, counts, by_cell[:, :_ADMITTED], by_cell[:, _ADMITTED])


def _closes_ms(layout: Layout, closings: Mapping[NodeId, int]) -> Ints:
    """Of each cell."""
    found = np.full(layout.num_cells, NEVER_MS, dtype=np.int64)
    for node_id, at_ms in closings.items():
        found[list(layout.cells_of_node.get(node_id, ()))] = at_ms
    return found


def _count(layout: Layout, usable: Flags) -> Ints:
    """The usable GPUs of each cell."""
    if not layout.num_cells:
        return np.zeros(0, dtype=np.int64)
    counts: Ints = np.add.reduceat(usable[layout.by_cell], layout.cell_start, dtype=np.int64)
    return counts
