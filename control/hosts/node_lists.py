"""Lists of nodes, filtered and in order."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, exists, func, literal_column, select

from control.core.paging import Part, Sort, SortKey, moment_key
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from control.fleet import cordons
from control.fleet.place_conditions import ANY_HOLDER, ANYWHERE, HolderFilter, PlaceFilter
from control.fleet.types import NodeRecord
from muster.db.models import AllocationGpu, Cordon, Gpu, Node
from muster.db.queries.assignments import IS_ASSIGNED
from muster.db.queries.effective_standing import effective_standing as effective_standing_of_row
from muster.db.queries.effective_standing import is_cordoned
from muster.domain.ids import NodeId
from muster.domain.principals import Permission
from muster.domain.states import Contact, Standing


class NodeOrder(StrEnum):
    """The order of a list of nodes: by name, by rack and name, or the longest silent first."""

    NAME = "name"
    RACK = "rack"
    SILENT = "silent"


_RACK: Final = SortKey(func.coalesce(Node.rack, literal_column("''")), lambda found: found.node.rack or "")
_NAME: Final = SortKey(Node.name, attrgetter("node.name"))
_BY_NAME: Final = Sort((_NAME,))
NODE_SORTS: Final = MappingProxyType(
    {
        NodeOrder.NAME: _BY_NAME,
        NodeOrder.RACK: Sort((_RACK, _NAME)),
        NodeOrder.SILENT: Sort((moment_key(Node.last_heartbeat_at, attrgetter("node.last_heartbeat_at")), _NAME)),
    }
)


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Conditions on a node; None and empty set no condition.

    ``name``: a part of it. ``is_cordoned``: by a cordon on the node itself. ``holder``: a job that has GPUs there.
    """

    contacts: Sequence[Contact] = ()
    name: str | None = None
    is_cordoned: bool | None = None
    place: PlaceFilter = ANYWHERE
    holder: HolderFilter = ANY_HOLDER


@dataclass(frozen=True, slots=True)
class ListedNode:
    """One node. ``standings``: its GPUs by their own standing; ``effective_standings``: as admission treats them.

    ``num_assigned``: GPUs that an attempt has, or that are being cleaned. ``num_cordoned``: GPUs that a cordon of their
    own or of the node keeps out of new placements.
    """

    node: NodeRecord
    standings: Mapping[Standing, int]
    effective_standings: Mapping[Standing, int]
    num_assigned: int
    num_cordons: int
    num_cordoned: int


def list_nodes(unit: UnitOfWork, wanted: NodeFilter, part: Part) -> Sequence[ListedNode]:
    """Return nodes by name unless ``part`` says otherwise."""
    unit.principal.require(Permission.NODE_READ)
    query = select(Node).where(*conditions_on(wanted, unit.now))
    return _listed(unit, unit.session.scalars(part.of(query, _BY_NAME)).all())


def conditions_on(wanted: NodeFilter, now: datetime) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of the filter on ``Node``."""
    if wanted.contacts:
        yield Node.contact.in_(wanted.contacts)
    if wanted.name is not None:
        yield Node.name.contains(wanted.name, autoescape=True)
    if wanted.is_cordoned is not None:
        has_one = exists().where(Cordon.node_id == Node.id, cordons.those_that_stand(now))
        yield has_one if wanted.is_cordoned else ~has_one
    yield from wanted.place.of_nodes()
    yield from wanted.holder.conditions(AllocationGpu.node_id, Node.id)


def _listed(unit: UnitOfWork, nodes: Sequence[Node]) -> list[ListedNode]:
    ids = [node.id for node in nodes]
    columns = Gpu.node_id, Gpu.standing, effective_standing_of_row(unit.now), is_cordoned(unit.now)
    own: dict[NodeId, Counter[Standing]] = {node_id: Counter() for node_id in ids}
    effective: dict[NodeId, Counter[Standing]] = {node_id: Counter() for node_id in ids}
    cordoned: Counter[NodeId] = Counter()
    for node_id, standing, as_admitted, has_cordon in unit.session.execute(
        select(*columns).where(Gpu.node_id.in_(ids))
    ):
        own[node_id][standing] += 1
        effective[node_id][as_admitted] += 1
        cordoned[node_id] += has_cordon
    on_nodes = select(Gpu.node_id, func.count()).where(Gpu.node_id.in_(ids)).group_by(Gpu.node_id)
    held = _counts(unit, on_nodes.join(AllocationGpu, and_(AllocationGpu.gpu_uuid == Gpu.uuid, IS_ASSIGNED)))
    standing_now = (Cordon.node_id.in_(ids), cordons.those_that_stand(unit.now))
    num_cordons = _counts(unit, select(Cordon.node_id, func.count()).where(*standing_now).group_by(Cordon.node_id))
    return [
        ListedNode(
            record_of(node, NodeRecord),
            standings=own[node.id],
            effective_standings=effective[node.id],
            num_assigned=held.get(node.id, 0),
            num_cordons=num_cordons.get(node.id, 0),
            num_cordoned=cordoned[node.id],
        )
        for node in nodes
    ]


def _counts(unit: UnitOfWork, query: Select[*tuple[Any, ...]]) -> dict[NodeId, int]:
    return {row[0]: row[1] for row in unit.session.execute(query)}
