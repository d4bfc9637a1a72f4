"""The facts of admission for each GPU, in topology order: one query, a row a GPU, built once.

States are constants in it, never parameters: only then does a plan that PostgreSQL keeps use the partial indexes. With
parameters it plans the query again each time, which takes longer than the query.
"""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Exists,
    Select,
    Subquery,
    and_,
    any_,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.orm import InstrumentedAttribute

from muster.db.base import UtcTimestamp
from muster.db.models import AllocationGpu, BurnIn, Cordon, Gpu, GpuHold, GpuOverride, Node, StoredSignal
from muster.db.queries.assignments import HOLDERS, IS_ASSIGNED
from muster.db.queries.effective_standing import (
    among,
    cordon_stands,
    is_cordoned,
    newest_override,
    override_in_force,
    override_stands,
)
from muster.domain.residency import SITE_LABEL
from muster.domain.states import BurnInState, Contact, Standing

_NOW: Final = bindparam("now", type_=UtcTimestamp())
_ASSIGNED: Final = select(AllocationGpu.gpu_uuid).where(AllocationGpu.gpu_uuid == Gpu.uuid, IS_ASSIGNED)
_RUNS: Final = BurnIn.state == literal_column(f"'{BurnInState.RUNNING.value}'")
_BURNING_IN: Final = select(BurnIn.gpu_uuid).where(BurnIn.gpu_uuid == Gpu.uuid, _RUNS)
_IS_SILENT: Final = Node.contact.in_(
    literal_column(f"'{contact.value}'") for contact in Contact if contact is not Contact.LIVE
)
_CORDON_STANDS: Final = cordon_stands(_NOW)
_CORDONED: Final = exists().where(or_(Cordon.node_id == Gpu.node_id, Cordon.gpu_uuid == Gpu.uuid), *_CORDON_STANDS)
_OVERRIDE_STANDS: Final = override_stands(_NOW)
_OVERRIDE: Final = newest_override(_NOW)
_ALARMS: Final = (StoredSignal.judged_at.is_(None), StoredSignal.is_alarming)
_REPORTED: Final = or_(
    Gpu.uuid.in_(select(StoredSignal.gpu_uuid).where(*_ALARMS, StoredSignal.gpu_uuid.is_not(None))),
    Gpu.node_id.in_(select(StoredSignal.node_id).where(*_ALARMS, StoredSignal.gpu_uuid.is_(None))),
)
"""Two lists that are read once each: few wait for the judge at any time, mostly none."""


def one_by_one(query: Select[*tuple[Any, ...]]) -> Exists:
    """Return whether the query finds a row, executed for each row.

    OFFSET keeps the planner from reading all rows once.
    """
    return query.offset(literal_column("0")).exists()


def _facts(
    is_assigned: ColumnElement[bool],
    is_burning_in: ColumnElement[bool],
    is_reported: ColumnElement[bool],
    has_cordon: ColumnElement[bool] = _CORDONED,
    override: ColumnElement[str | None] = _OVERRIDE,
) -> Select[*tuple[Any, ...]]:
    """Return the facts of GPUs alone; ``_with_node`` adds the facts of their nodes."""
    return select(
        Gpu.uuid,
        Gpu.node_id,
        Gpu.slot_index,
        Gpu.cohort_key,
        Gpu.standing,
        Gpu.standing_since,
        Gpu.is_mig_enabled,
        is_assigned.label("is_assigned"),
        has_cordon.label("is_cordoned"),
        override.label("override"),
        is_burning_in.label("is_burning_in"),
        is_reported.label("is_reported"),
    )


def _with_node(facts: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return facts.add_columns(Node.contact, Node.rack).join(Node, Node.id == Gpu.node_id)


def _in_order(facts: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return facts.order_by(Node.rack, Gpu.node_id, Gpu.slot_index)


FACTS: Final = _in_order(_with_node(_facts(_ASSIGNED.exists(), _BURNING_IN.exists(), _REPORTED)))
"""Takes the instant ``now``, at which cordons and overrides are in force."""
_FEW: Final = _facts(
    one_by_one(_ASSIGNED),
    one_by_one(_BURNING_IN),
    one_by_one(
        select(StoredSignal.node_id).where(
            *_ALARMS,
            StoredSignal.node_id == Gpu.node_id,
            or_(StoredSignal.gpu_uuid.is_(None), StoredSignal.gpu_uuid == Gpu.uuid),
        )
    ),
)
FACTS_OF_FEW: Final = _in_order(_with_node(_FEW))
"""The same for a few GPUs of a large fleet: it does not grow with what the others hold."""

UNORDERED_FACTS_OF_FEW: Final = _FEW.add_columns(
    select(Node.contact).where(Node.id == Gpu.node_id).scalar_subquery().label("contact")
)
"""The same of GPUs by their UUIDs, in no order: each looks up its node, of which a join would read all."""


def facts_of_gang(nodes: ColumnElement[Any], gpus: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """Return the facts of thousands of ``gpus`` on ``nodes``, arrays, in no order: rare facts are read once for all."""
    held = select(AllocationGpu.gpu_uuid).where(AllocationGpu.gpu_uuid == any_(gpus), IS_ASSIGNED)
    return _with_node(_read_once(held)).where(Gpu.node_id == any_(nodes))


def _read_once(assigned: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return _rare_read_once(among(assigned, Gpu.uuid))


def _rare_read_once(is_assigned: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    return _facts(
        is_assigned,
        among(select(BurnIn.gpu_uuid).where(_RUNS), Gpu.uuid),
        _REPORTED,
        is_cordoned(_NOW),
        override_in_force(_NOW),
    )


@dataclass(frozen=True, slots=True)
class GangColumns:
    """A gang's hosts and its GPUs, as queries of one column each."""

    nodes: Select[*tuple[Any, ...]]
    gpus: Select[*tuple[Any, ...]]


def is_among(column: InstrumentedAttribute[Any], chosen: Select[*tuple[Any, ...]]) -> ColumnElement[bool]:
    """Return the condition of ``among`` in the other direction: rows that are few are searched in the gang."""
    is_found: ColumnElement[bool] = column.in_(chosen).is_(true())
    return is_found


def anything_about(gang: GangColumns) -> ColumnElement[bool]:
    """Return whether admission knows more of a gang's GPUs than their own rows; ``facts_of_gang`` returns the facts.

    The holder of a GPU is left out: it would need a look-up a GPU in the index that refuses a second holder (I1).
    """
    of_nodes = or_(is_among(Cordon.node_id, gang.nodes), is_among(Cordon.gpu_uuid, gang.gpus))
    of_node = and_(StoredSignal.gpu_uuid.is_(None), is_among(StoredSignal.node_id, gang.nodes))
    return or_(
        exists().where(_IS_SILENT, is_among(Node.id, gang.nodes)),
        exists().where(of_nodes, *_CORDON_STANDS),
        exists().where(is_among(GpuOverride.gpu_uuid, gang.gpus), *_OVERRIDE_STANDS),
        exists().where(is_among(BurnIn.gpu_uuid, gang.gpus), _RUNS),
        exists().where(or_(of_node, is_among(StoredSignal.gpu_uuid, gang.gpus)), *_ALARMS),
    )


def facts_of_fleet() -> Select[*tuple[Any, ...]]:
    """Return the facts of every GPU in no order, without its node, but with its score and its board's serial."""
    return _read_once(select(AllocationGpu.gpu_uuid).where(IS_ASSIGNED)).add_columns(Gpu.score, Gpu.serial)


def _by_kind(facts: Subquery, *more: str) -> Select[*tuple[Any, ...]]:
    """Return how many GPUs have equal facts, and are equal in ``more``: these first, since rows are sorted by them."""
    is_young = facts.c.standing == literal_column(f"'{Standing.PROBATION.value}'")
    since = case((is_young, facts.c.standing_since)).label("standing_since")
    names = ("standing", "contact", "is_mig_enabled", "is_cordoned", "is_assigned", "is_burning_in", "is_reported")
    kind = [*(facts.c[name] for name in (*more, *names)), facts.c.override, since]
    return select(*kind, func.count().label("num_gpus")).group_by(*kind)


def _by_group() -> Select[*tuple[Any, ...]]:
    held = among(select(GpuHold.gpu_uuid), Gpu.uuid).label("has_hold")
    facts = (
        _with_node(_rare_read_once(HOLDERS.c.tenant_id.is_not(None)))
        .add_columns(Gpu.score, Gpu.model, Node.labels[SITE_LABEL].astext.label("site"), HOLDERS.c.tenant_id, held)
        .outerjoin(HOLDERS, HOLDERS.c.gpu_uuid == Gpu.uuid)
        .where(Gpu.standing != literal_column(f"'{Standing.RETIRED.value}'"))
        .subquery()
    )
    return _by_kind(facts, "node_id", "rack", "cohort_key", "site", "model", "tenant_id", "score", "has_hold")


FACTS_BY_KIND: Final = _by_kind(_with_node(_read_once(select(AllocationGpu.gpu_uuid).where(IS_ASSIGNED))).subquery())
"""How many GPUs of the fleet have equal facts: a row a kind. Takes the instant ``now``."""
FACTS_BY_GROUP: Final = _by_group()
"""The same with scores and holds, and apart by node, rack, cohort, site, model and tenant; without retired GPUs."""
