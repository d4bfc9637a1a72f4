"""The fleet's state as arrays in topology order: admitted and free GPUs (``scheduler.fleet.layout``).

A tier whose gangs need to be alike in fewer attributes has a layout of its own, of fewer and larger cells. The numbers
of GPUs are the same in each layout, the numbers of cells and groups are not: code about a tier's cells calls
``FleetState.for_tier`` first.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from health.standing.admission import AdmissionFacts, Refusal, refusal_of
from muster.domain.ids import NodeId
from muster.domain.policy.document import Policy
from scheduler.fleet.build_layout import build_layout as build_layout  # noqa: PLC0414
from scheduler.fleet.build_layout import layout_by
from scheduler.fleet.cell_counts import SomeKept, Tallies
from scheduler.fleet.fragmentation import Fragments, Mix, mix_of
from scheduler.fleet.layout import NOWHERE as NOWHERE  # noqa: PLC0414  # every room of the core has these from here
from scheduler.fleet.layout import Flags as Flags  # noqa: PLC0414
from scheduler.fleet.layout import Layout as Layout  # noqa: PLC0414
from scheduler.fleet.rails import DeclaredRails, Rails
from scheduler.fleet.stamp import Stamp
from scheduler.fleet.tally import NO_CELLS, Tally
from scheduler.fleet.tally import Ints as Ints  # noqa: PLC0414
from scheduler.model import GpuView

NEVER_MS: Final = int(np.iinfo(np.int64).max)
REFUSALS: Final = tuple(Refusal)
_ADMITTED: Final = len(REFUSALS)
_ASSIGNED: Final = REFUSALS.index(Refusal.ASSIGNED)


def _distinguished(facts: Sequence[AdmissionFacts]) -> tuple[Ints, tuple[AdmissionFacts, ...]]:
    """Return the number of each entry, and the distinct ones.

    Many are one object, whose identity is faster to compare.
    """
    known: dict[AdmissionFacts, int] = {}
    by_object: dict[int, int] = {}
    for one in facts:
        if id(one) not in by_object:
            by_object[id(one)] = known.setdefault(one, len(known))
    return np.array([by_object[id(one)] for one in facts], dtype=np.int64), tuple(known)


@dataclass(frozen=True, slots=True)
class TierView:
    """The fleet as one tier may use it.

    ``admitted``: of each GPU, whether in use or not; ``counts``: usable GPUs a cell of the tier's own ``layout``.
    ``refused``: GPUs by cell and refusal, ``num_refused``: of all cells; ``admitted_counts``: the GPUs of each cell
    that are not refused, free or not.
    """

    layout: Layout
    admitted: Flags
    refusals: Ints
    counts: Ints
    refused: Ints
    num_refused: Ints
    admitted_counts: Ints


class NodeFilter(Protocol):
    """A node filter, which closes cells to a request. Equal ones close the same cells."""

    def __hash__(self) -> int: ...

    def excluded(self, state: "FleetState") -> Ints:
        """Return the cells of the state's own layout that are closed, in order."""


class NoNodeFilter:
    """The filter of requests that may be anywhere in the fleet."""

    def excluded(self, state: "FleetState") -> Ints:
        del state
        return NO_CELLS


NO_NODE_FILTER: Final = NoNodeFilter()


class FleetState:
    """A layout, and which GPUs are free in it. ``take`` and ``give`` undo each other, for a what-if.

    ``was_assigned``: the GPUs that were in use when the state was made, whatever was taken and given since.
    ``is_spare``: kept for gangs that lose hosts. ``cell_closes_ms``: when planned work begins there. ``mix``:
    requests that are expected of other jobs. ``lasting``: numbers that do not depend on which GPUs are free, by the key
    of the reader.
    """

    __slots__ = (
        "_closings",
        "_closings_ms",
        "_distinct",
        "_facts",
        "_fragments",
        "_levels",
        "_of_rule",
        "_of_tier",
        "_ordered",
        "_rails",
        "_stamp",
        "_tallies",
        "_tiers",
        "cell_closes_ms",
        "is_free",
        "is_spare",
        "lasting",
        "layout",
        "mix",
        "policy",
        "was_assigned",
    )

    def __init__(self, gpus: Sequence[GpuView], policy: Policy, levels: Sequence[str] | None = None) -> None:
        self._levels = policy.placement.levels if levels is None else levels
        self.layout, self._ordered = build_layout(gpus, self._levels)
        self._facts, self._distinct = _distinguished([gpu.facts for gpu in self._ordered])
        is_held = np.array([facts.is_assigned for facts in self._distinct], dtype=np.bool_)
        self.was_assigned: Flags = is_held[self._facts]
        self.is_free: Flags = ~self.was_assigned
        self.policy = policy
        self._rails = DeclaredRails(self.layout, self._ordered, policy.placement.rails)
        self._tiers: dict[str, TierView] = {}
        self._tallies = Tallies(self.layout.num_cells)
        self.is_spare: Flags = np.zeros(len(self._ordered), dtype=np.bool_)
        self._closings: dict[NodeId, int] = {}
        self.cell_closes_ms: Ints = _closes_ms(self.layout, self._closings)
        self._closings_ms: list[int] = []
        self.mix: Mix = mix_of(policy.placement.fragmentation)
        self._fragments: Fragments | None = None
        self._of_rule: dict[frozenset[str] | None, FleetState] = {None: self}
        self._of_tier: dict[str, FleetState] = {}
        self._stamp = Stamp(len(self._ordered))
        self.lasting: dict[Hashable, int] = {}

    def for_tier(self, name: str) -> "FleetState":
        """Return the same fleet, laid out by what the tier requires of its gangs; all layouts share the free GPUs.

        Raises ``KeyError`` for a tier that the policy does not define.
        """
        found = self._of_tier.get(name)
        if found is None:
            rule = self.policy.homogeneity(name)
            if rule not in self._of_rule:
                self._of_rule[rule] = self._laid_out_by(rule or frozenset())
            found = self._of_tier[name] = self._of_rule[rule]
        return found

    def _laid_out_by(self, rule: frozenset[str]) -> "FleetState":
        other = copy(self)
        other.layout = layout_by(rule, self._ordered, self._levels)
        other._tallies, other._fragments = Tallies(other.layout.num_cells), None  # noqa: SLF001  # of its own class
        other.cell_closes_ms = _closes_ms(other.layout, self._closings)
        return other

    def fork(self, is_free: Flags, tiers: Iterable[str]) -> "FleetState":
        """Return the same fleet for a what-if that need not be undone.

        ``is_free``: of each GPU there; the fork owns the array from now on. ``tiers``: the tiers that will be read.
        """
        views = {name: self.tier(name) for name in set(tiers)}
        is_same = np.array_equal(is_free, self.is_free)
        counts = {
            name: one.counts.copy() if is_same else _count(one.layout, one.admitted & is_free)
            for name, one in views.items()
        }
        forked = {name: replace(one, counts=counts[name]) for name, one in views.items()}
        closings, closings_ms = self._closings.copy(), self._closings_ms.copy()
        twins: dict[frozenset[str] | None, FleetState] = {}
        twin_of_tier: dict[str, FleetState] = {}
        stamp, lasting = Stamp(len(is_free)), dict[Hashable, int]()
        for rule, each in self._of_rule.items():
            twin = twins[rule] = copy(each)
            twin._fragments = each.fragments if each.mix else None  # noqa: SLF001  # all forks share the tables
            twin.is_free, twin._tiers, twin._of_rule = is_free, forked, twins  # noqa: SLF001  # of its own class
            twin._of_tier = twin_of_tier  # noqa: SLF001
            twin._closings, twin._closings_ms = closings, closings_ms  # noqa: SLF001
            twin._tallies = Tallies(twin.layout.num_cells)  # noqa: SLF001
            twin._stamp, twin.lasting = stamp, lasting  # noqa: SLF001
        return twins[None]

    def reopened(self, nodes: Collection[NodeId]) -> "FleetState":
        """Return a fork in which planned work on these nodes is over: they neither close nor are cordoned.

        It continues with this state's ``is_free``, so this state must not be used any more.
        """
        other = self.fork(self.is_free, ())
        facts, distinct = self._without_cordons(nodes)
        for each in other._of_rule.values():  # noqa: SLF001  # of its own class
            each._facts, each._distinct = facts, distinct  # noqa: SLF001
        other.close({name: at_ms for name, at_ms in self._closings.items() if name not in nodes})
        return other

    def _without_cordons(self, nodes: Collection[NodeId]) -> tuple[Ints, tuple[AdmissionFacts, ...]]:
        cells = [cell for node_id in nodes for cell in self.layout.cells_of_node.get(node_id, ())]
        gpus = self.layout.gpus_of_cells(np.array(cells, dtype=np.int64))
        number_of = {each: number for number, each in enumerate(self._distinct)}
        facts = self._facts.copy()
        for number in np.unique(facts[gpus]).tolist():
            open_one = replace(self._distinct[number], is_cordoned=False)
            facts[gpus[self._facts[gpus] == number]] = number_of.setdefault(open_one, len(number_of))
        return facts, tuple(number_of)

    def close(self, maintenance_starts: Mapping[NodeId, int]) -> None:
        """Set from when on planned work needs these nodes without jobs."""
        if maintenance_starts == self._closings:
            return
        self.lasting.clear()
        self._closings.clear()
        self._closings.update(maintenance_starts)
        for each in self._of_rule.values():
            each.cell_closes_ms = _closes_ms(each.layout, self._closings)
            each._tallies = Tallies(each.layout.num_cells)  # noqa: SLF001  # of its own class; some are of other closings
        moments_ms = np.unique(self.cell_closes_ms).tolist()
        self._closings_ms[:] = [at_ms for at_ms in moments_ms if at_ms != NEVER_MS]

    def expect(self, mix: Mix) -> None:
        """Expect requests of this mix from now on, and keep room for them."""
        if mix != self.mix:
            for each in self._of_rule.values():
                each.mix, each._fragments = mix, None  # noqa: SLF001  # of its own class

    @property
    def fragments(self) -> Fragments:
        """The tables of what the mix cannot use."""
        if self._fragments is None:
            self._fragments = Fragments(self.layout, self.mix)
        return self._fragments

    @property
    def rails(self) -> Rails:
        """The rail of each GPU."""
        return self._rails.found

    @property
    def closings_ms(self) -> Sequence[int]:
        """The times at which nodes of the fleet close, in order."""
        return self._closings_ms

    @property
    def stamp(self) -> int:
        """A number that is the same if the same GPUs are free: a what-if that is undone leaves it as it was."""
        return self._stamp.value

    def last_closing_ms(self, end_ms: float) -> int | None:
        """Return the last closing before ``end_ms``, or None.

        Jobs that end between the same two closings may use the same nodes.
        """
        before = bisect_left(self._closings_ms, end_ms)
        return self._closings_ms[before - 1] if before else None

    def tier(self, name: str) -> TierView:
        """Return the view of a tier. Raises ``KeyError`` for a tier that the policy does not define."""
        found = self._tiers.get(name)
        if found is None:
            found = self._tiers[name] = self._make_tier(name)
        return found

    def usable(self, name: str) -> Flags:
        usable: Flags = self.tier(name).admitted & self.is_free
        return usable

    def tally(self, name: str, gpus_per_node: int, fence: NodeFilter = NO_NODE_FILTER) -> Tally:
        """Return the tally of GPUs that the tier may use now, without the cells that ``fence`` closes."""
        own, counts = self.for_tier(name), self.tier(name).counts

        def make() -> Tally:
            return Tally(own.layout, counts, gpus_per_node, fence.excluded(own))

        return own.kept((name, gpus_per_node, fence), make)

    def kept(self, key: Hashable, make: Callable[[], SomeKept]) -> SomeKept:
        """Return the count of this key by the cells of this layout, which follows each change."""
        return self._tallies.get(key, make)

    def recount(self, name: str) -> Ints:
        """Return the usable GPUs of each cell, counted over the whole fleet: the oracle of the kept counts."""
        tier = self.tier(name)
        return _count(tier.layout, tier.admitted & self.is_free)

    def refused(self, name: str) -> dict[Refusal, int]:
        """Return how many GPUs this tier cannot take now, by reason."""
        tier = self.tier(name)
        numbers = tier.num_refused.copy()
        numbers[_ASSIGNED] += tier.admitted_counts.sum() - tier.counts.sum()
        return {refusal: int(number) for refusal, number in zip(REFUSALS, numbers, strict=False) if number}

    def take(self, gpus: Ints) -> None:
        """Mark ``gpus``, distinct indices, all free, as used."""
        self.is_free[gpus] = False
        self._stamp.changes(gpus)
        self._adjust(gpus, -1)

    def give(self, gpus: Ints) -> None:
        """Mark ``gpus``, distinct indices, none free, as free."""
        self.is_free[gpus] = True
        self._stamp.changes(gpus)
        self._adjust(gpus, 1)

    def _adjust(self, gpus: Ints, sign: int) -> None:
        for each in self._of_rule.values():
            cells = each.layout.cell_of_gpu[gpus]
            for tier in self._tiers.values():
                if tier.layout is each.layout:
                    np.add.at(tier.counts, cells[tier.admitted[gpus]], sign)
            each._tallies.touch(cells)  # noqa: SLF001  # of its own class

    def _make_tier(self, name: str) -> TierView:
        verdicts = [refusal_of(facts, self.policy.tier(name)) for facts in self._distinct]
        codes = [_ADMITTED if verdict in {None, Refusal.ASSIGNED} else REFUSALS.index(verdict) for verdict in verdicts]
        refusals = np.array(codes, dtype=np.int64)[self._facts] if codes else self._facts
        admitted: Flags = refusals == _ADMITTED
        layout = self.for_tier(name).layout
        num_cells, size = layout.num_cells, _ADMITTED + 1
        numbers = np.bincount(layout.cell_of_gpu * size + refusals, minlength=num_cells * size)
        by_cell = numbers.reshape(num_cells, size)
        counts = _count(layout, admitted & self.is_free)
        refused, admitted_counts = by_cell[:, :_ADMITTED], by_cell[:, _ADMITTED]
        return TierView(layout, admitted, refusals, counts, refused, refused.sum(axis=0), admitted_counts)


def _closes_ms(layout: Layout, maintenance_starts: Mapping[NodeId, int]) -> Ints:
    """Return when each cell closes."""
    found = np.full(layout.num_cells, NEVER_MS, dtype=np.int64)
    for node_id, at_ms in maintenance_starts.items():
        found[list(layout.cells_of_node.get(node_id, ()))] = at_ms
    return found


def _count(layout: Layout, usable: Flags) -> Ints:
    """Return the usable GPUs of each cell."""
    if not layout.num_cells:
        return np.zeros(0, dtype=np.int64)
    counts: Ints = np.add.reduceat(usable[layout.by_cell], layout.cell_start, dtype=np.int64)
    return counts
