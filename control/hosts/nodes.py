"""Nodes by the page, and one node with all facts that an operator needs: GPUs, cordons, running jobs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, exists, func, select

from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet import cordons
from control.fleet.node_places import path_of
from control.hosts import drains
from muster.db.models import AllocationGpu, Cordon, Gpu, Node
from muster.db.pipeline.records import CordonRecord, NodeLatestRecord, NodeRecord
from muster.db.queries.holdings import IS_TAKEN
from muster.db.queries.node_documents import NODE, FailingSaves, GpuOnNode, JobOnNode, NodeView
from muster.domain.errors import NotFoundError
from muster.domain.ids import NodeId
from muster.domain.principals import Permission
from muster.domain.states import Contact, Standing

READ: Final = declare_action("node.read")


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Conditions on a node; None and empty set no condition.

    ``name``: a part of it. ``is_cordoned``: by a cordon on the node itself.
    """

    contacts: Sequence[Contact] = ()
    name: str | None = None
    rack: str | None = None
    is_cordoned: bool | None = None


@dataclass(frozen=True, slots=True)
class ListedNode:
    """One node. ``standings``: its GPUs by standing.

    ``num_held``: GPUs that an attempt has, or that are being cleaned.
    """

    node: Node | NodeRecord
    standings: Mapping[Standing, int]
    num_held: int
    num_cordons: int


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """One node in full. ``place``: the domain's name at each known level of the tree, widest first.

    ``cordons``: of the node and of its GPUs, the newest first.
    """

    listed: ListedNode
    place: Sequence[tuple[str, str]]
    latest: NodeLatestRecord | None
    gpus: Sequence[GpuOnNode]
    cordons: Sequence[CordonRecord]
    jobs: Sequence[JobOnNode]
    failing_saves: Sequence[FailingSaves]

    @property
    def node(self) -> Node | NodeRecord:
        return self.listed.node

    @property
    def drain(self) -> CordonRecord | None:
        """The cordon of the drain that stands; the drain is done when no job is left."""
        return next((cordon for cordon in self.cordons if cordon.reason_code == drains.REASON_CODE), None)


def list_nodes(unit: UnitOfWork, wanted: NodeFilter, *, after: str | None = None, limit: int) -> Sequence[ListedNode]:
    """Return nodes by name. ``after``: the name at which the last page ended."""
    unit.principal.require(Permission.NODE_READ)
    query = select(Node).where(*_conditions(wanted, unit.now))
    if after is not None:
        query = query.where(Node.name > after)
    return _listed(unit, unit.session.scalars(query.order_by(Node.name).limit(limit)).all())


def detail_of(unit: UnitOfWork, text: str) -> NodeDetail:
    """Return the node whose id or name is ``text``. Raises ``NotFoundError``."""
    unit.principal.require(Permission.NODE_READ)
    unit.session.flush()
    return detail_from(NODE.ask(unit.session, {"node": text, "now": unit.now}))


def detail_from(found: NodeView | None) -> NodeDetail:
    """Return the node's details. Raises ``NotFoundError`` where nothing was found."""
    if found is None:
        raise NotFoundError("there is no such node")
    node = found.node
    path = path_of(found.levels, node.rack, node.labels)
    place = ((level, name) for level, name in zip(found.levels, path, strict=True) if name)
    own_cordons = sum(cordon.node_id == node.id for cordon in found.cordons)
    return NodeDetail(
        listed=ListedNode(node, Counter(each.gpu.standing for each in found.gpus), found.num_held, own_cordons),
        place=(*place, ("node", node.name)),
        latest=found.latest,
        gpus=found.gpus,
        cordons=found.cordons,
        jobs=found.jobs,
        failing_saves=found.failing_saves,
    )


def _conditions(wanted: NodeFilter, now: datetime) -> Iterator[ColumnElement[bool]]:
    if wanted.contacts:
        yield Node.contact.in_(wanted.contacts)
    if wanted.name is not None:
        yield Node.name.contains(wanted.name, autoescape=True)
    if wanted.rack is not None:
        yield Node.rack == wanted.rack
    if wanted.is_cordoned is not None:
        has_one = exists().where(Cordon.node_id == Node.id, cordons.those_that_stand(now))
        yield has_one if wanted.is_cordoned else ~has_one


def _listed(unit: UnitOfWork, nodes: Sequence[Node]) -> list[ListedNode]:
    ids = [node.id for node in nodes]
    by_standing = select(Gpu.node_id, Gpu.standing, func.count()).where(Gpu.node_id.in_(ids))
    standings: dict[NodeId, dict[Standing, int]] = {node_id: {} for node_id in ids}
    for node_id, standing, count in unit.session.execute(by_standing.group_by(Gpu.node_id, Gpu.standing)):
        standings[node_id][standing] = count
    on_nodes = select(Gpu.node_id, func.count()).where(Gpu.node_id.in_(ids)).group_by(Gpu.node_id)
    held = _counts(unit, on_nodes.join(AllocationGpu, and_(AllocationGpu.gpu_uuid == Gpu.uuid, IS_TAKEN)))
    standing_now = (Cordon.node_id.in_(ids), cordons.those_that_stand(unit.now))
    num_cordons = _counts(unit, select(Cordon.node_id, func.count()).where(*standing_now).group_by(Cordon.node_id))
    return [ListedNode(node, standings[node.id], held.get(node.id, 0), num_cordons.get(node.id, 0)) for node in nodes]


def _counts(unit: UnitOfWork, query: Select[*tuple[Any, ...]]) -> dict[NodeId, int]:
    return {row[0]: row[1] for row in unit.session.execute(query)}
