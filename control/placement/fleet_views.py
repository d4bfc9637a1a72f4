"""The fleet as a cycle plans on it: each GPU with its facts, place and labels, and the cost of its health.

Of 100,000 GPUs few change between two cycles. A process keeps the cell that it made of each row. It makes the cell
again if the row has changed, if the number of recent quarantines of its boards has, or if a probation has passed the
age that matters. A cell is a function of these and of the policy alone, so it needs no message about changes.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from control.fleet.hazards import quarantines_by_board
from control.fleet.node_places import path_of
from health.standing.admission import AdmissionFacts
from health.standing.standing import is_reclaimable_only
from muster.db.queries.packed_facts import FACTS_BY_CELL, PackedGpu, unpacked
from muster.domain.ids import NodeId
from muster.domain.policy.document import Policy
from muster.domain.policy.health import HealthPolicy
from muster.domain.policy.placement import HazardPolicy
from muster.domain.states import Contact, Standing
from muster.domain.times import to_ms
from scheduler.model import GpuView
from scheduler.solve.placement_rule import Labels

_Kind = tuple[Standing, Contact, int, bool, str]


@dataclass(frozen=True, slots=True)
class _Cell:
    """GPUs of one cohort on one node, made of ``row``.

    ``quarantines`` counts per board (empty: none had any). ``num_young`` is the number of probations since ``since_ms``
    that were young enough for reclaimable tiers alone.
    """

    row: Any
    boards: tuple[str, ...]
    quarantines: tuple[int, ...]
    since_ms: tuple[int, ...]
    num_young: int
    path: tuple[str, ...]
    views: tuple[GpuView, ...]


@dataclass(frozen=True, slots=True)
class _Rules:
    """The parts of the policy that decide what is made of a row."""

    health: HealthPolicy
    hazard: HazardPolicy
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fleet:
    """Cells of the fleet. ``kinds``, ``labels``, ``cohorts`` share equal objects: a fleet has few different ones."""

    rules: _Rules
    cells: Mapping[tuple[NodeId, str], _Cell] = field(default_factory=dict)
    kinds: dict[_Kind, AdmissionFacts] = field(default_factory=dict)
    labels: dict[Labels, Labels] = field(default_factory=dict)
    cohorts: dict[str, str] = field(default_factory=dict)


_FLEETS: Final[WeakKeyDictionary[Engine, _Fleet]] = WeakKeyDictionary()


def placed_views(session: Session, now: datetime, policy: Policy) -> list[GpuView]:
    """Return the views in the planner's own order, which is sorted fastest. One row a node and cohort is read."""
    bind = session.get_bind()
    engine = bind.engine if isinstance(bind, Connection) else bind
    rules = _Rules(policy.health, policy.placement.hazard, tuple(policy.placement.levels))
    fleet = _fleet_of(engine, rules)
    now_ms, quarantines = to_ms(now), quarantines_by_board(session, now, rules.hazard)
    cells: dict[tuple[NodeId, str], _Cell] = {}
    for row in session.execute(FACTS_BY_CELL, {"now": now}):
        key = row[:2]
        cell = fleet.cells.get(key)
        if cell is None or cell.row != row or not _is_as_of(cell, rules, now_ms, quarantines):
            cell = _made(row, fleet, now_ms, quarantines)
        cells[key] = cell
    _FLEETS[engine] = replace(fleet, cells=cells)
    in_order = sorted(cells.items(), key=lambda item: (item[1].path, item[0]))
    return [view for _, cell in in_order for view in cell.views]


def _fleet_of(engine: Engine, rules: _Rules) -> _Fleet:
    """Return the fleet as it was last read under these rules; an empty one under others."""
    fleet = _FLEETS.get(engine)
    return fleet if fleet is not None and fleet.rules == rules else _Fleet(rules)


def _is_as_of(cell: _Cell, rules: _Rules, now_ms: int, quarantines: Counter[str]) -> bool:
    if cell.since_ms and _num_young(cell.since_ms, rules.health, now_ms) != cell.num_young:
        return False
    return _counted(cell.boards, quarantines) == cell.quarantines


def _num_young(since_ms: tuple[int, ...], health: HealthPolicy, now_ms: int) -> int:
    """Return how many probations are young. They age in the order of their begin, so the number identifies them."""
    return sum(is_reclaimable_only(Standing.PROBATION, since, now_ms, health) for since in since_ms)


def _counted(boards: tuple[str, ...], quarantines: Counter[str]) -> tuple[int, ...]:
    has_none = not quarantines or quarantines.keys().isdisjoint(boards)
    return () if has_none else tuple(quarantines[board] for board in boards)


def _made(row: Any, fleet: _Fleet, now_ms: int, quarantines: Counter[str]) -> _Cell:
    node_id, cohort_key, contact, rack, labels_text, packed = row
    gpus = sorted(unpacked(packed), key=lambda gpu: (gpu.slot_index, gpu.uuid))
    stored = json.loads(labels_text)
    path = path_of(fleet.rules.levels, rack, stored)
    labels = tuple(sorted(stored.items()))
    labels = fleet.labels.setdefault(labels, labels)
    cohort = fleet.cohorts.setdefault(cohort_key, cohort_key)
    views = []
    for gpu in gpus:
        cost = fleet.rules.hazard.failures_in_million_h(gpu.score, quarantines[gpu.board])
        facts = _facts(gpu, contact, fleet, now_ms)
        views.append(GpuView(gpu.uuid, node_id, gpu.slot_index, cohort, facts, path, cost, labels))
    boards = tuple(gpu.board for gpu in gpus)
    since_ms = tuple(sorted({gpu.since_ms for gpu in gpus if gpu.since_ms is not None}))
    num_young = _num_young(since_ms, fleet.rules.health, now_ms)
    return _Cell(row, boards, _counted(boards, quarantines), since_ms, num_young, path, tuple(views))


def _facts(gpu: PackedGpu, contact: Contact, fleet: _Fleet, now_ms: int) -> AdmissionFacts:
    is_young = gpu.since_ms is not None and is_reclaimable_only(gpu.standing, gpu.since_ms, now_ms, fleet.rules.health)
    kind = (gpu.standing, contact, gpu.flags, is_young, gpu.override)
    facts = fleet.kinds.get(kind)
    if facts is None:
        facts = fleet.kinds[kind] = AdmissionFacts(
            standing=gpu.standing,
            contact=contact,
            is_cordoned=gpu.has("is_cordoned"),
            is_assigned=gpu.has("is_assigned"),
            is_burning_in=gpu.has("is_burning_in"),
            is_reported=gpu.has("is_reported"),
            is_reclaimable_only=is_young,
            is_mig_enabled=gpu.has("is_mig_enabled"),
            override=Standing(gpu.override) if gpu.override else None,
        )
    return facts
