"""Nodes by the page, and one node with all that an operator asks about it: GPUs, cordons, who runs there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, exists, func, or_, select
from sqlalchemy.dialects.postgresql import aggregate_order_by

from muster.db.models import Allocation, AllocationGpu, Attempt, Cordon, Gpu, Job, Node, NodeLatest
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import AllocationState, AttemptState, Contact, Standing, StopReason
from muster.services import cordons, drains
from muster.services.gpu_lists import GpuFilter, ListedGpu, list_gpus
from muster.services.node_names import find_node
from muster.services.unit_of_work import UnitOfWork, declare_action
from scheduler.model import DEFAULT_LEVELS

READ: Final = declare_action("node.read")
MAX_GPUS: Final = 1024
"""More than any host has."""


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """What a node must be; None and empty ask nothing. ``name``: a part of it. ``is_cordoned``: by a node's cordon."""

    contacts: Sequence[Contact] = ()
    name: str | None = None
    rack: str | None = None
    is_cordoned: bool | None = None


@dataclass(frozen=True, slots=True)
class ListedNode:
    """``standings``: how many of its GPUs stand where. ``num_held``: those that an attempt has, or that are cleaned."""

    node: Node
    standings: Mapping[Standing, int]
    num_held: int
    num_cordons: int


@dataclass(frozen=True, slots=True)
class JobOnNode:
    """An attempt that has GPUs of the node. ``state``: its allocation's; CLEANING when its programs have ended."""

    job_id: JobId
    job_name: str
    tenant_id: TenantId
    tier: str
    attempt_id: AttemptId
    attempt_number: int
    attempt_state: AttemptState
    stop_reason: StopReason | None
    stop_deadline_at: datetime | None
    state: AllocationState
    gpus: Sequence[GpuUuid]


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """``place``: the domain's name at each level of the tree that is known, widest first. ``cordons``: the node's own
    and those of its GPUs, the newest first.
    """

    listed: ListedNode
    place: Sequence[tuple[str, str]]
    latest: NodeLatest | None
    gpus: Sequence[ListedGpu]
    cordons: Sequence[Cordon]
    jobs: Sequence[JobOnNode]

    @property
    def node(self) -> Node:
        return self.listed.node

    @property
    def drain(self) -> Cordon | None:
        """The cordon of the drain that stands; it is done when no job is left."""
        return next((cordon for cordon in self.cordons if cordon.reason_code == drains.REASON_CODE), None)


def list_nodes(unit: UnitOfWork, wanted: NodeFilter, *, after: str | None = None, limit: int) -> Sequence[ListedNode]:
    """By name. ``after``: the name where the last page ended."""
    unit.principal.require(Permission.NODE_READ)
    query = select(Node).where(*_conditions(wanted, unit.now))
    if after is not None:
        query = query.where(Node.name > after)
    return _listed(unit, unit.session.scalars(query.order_by(Node.name).limit(limit)).all())


def detail_of(unit: UnitOfWork, text: str) -> NodeDetail:
    """The node whose id or name is ``text``. Raises ``NotFoundError``."""
    node = find_node(unit, text)
    unit.session.flush()
    place = ((level, name) for level, name in zip(DEFAULT_LEVELS, (node.rack,), strict=True) if name is not None)
    return NodeDetail(
        listed=_listed(unit, [node])[0],
        place=(*place, ("node", node.name)),
        latest=unit.session.get(NodeLatest, node.id),
        gpus=list_gpus(unit, GpuFilter(node=node.id), limit=MAX_GPUS),
        cordons=_cordons_of(unit, node.id),
        jobs=jobs_on(unit, node.id),
    )


def jobs_on(unit: UnitOfWork, node_id: NodeId) -> Sequence[JobOnNode]:
    """Who has GPUs of the node, until they are proved clean; the longest there first."""
    query: Select[*tuple[Any, ...]] = (
        select(
            Job.id,
            Job.name,
            Job.tenant_id,
            Job.tier,
            Attempt.id,
            Attempt.number,
            Attempt.state,
            Attempt.stop_reason,
            Attempt.stop_deadline_at,
            Allocation.state,
            func.array_agg(aggregate_order_by(AllocationGpu.gpu_uuid, AllocationGpu.gpu_uuid)),
        )
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .join(Job, Job.id == Allocation.job_id)
        .where(AllocationGpu.node_id == node_id, AllocationGpu.state != AllocationState.RELEASED)
        .group_by(Job.id, Attempt.id, Allocation.id)
        .order_by(Allocation.id)
    )
    return [JobOnNode(*row) for row in unit.session.execute(query)]


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
    taken = (AllocationGpu.node_id.in_(ids), AllocationGpu.state != AllocationState.RELEASED)
    held = _counts(unit, select(AllocationGpu.node_id, func.count()).where(*taken).group_by(AllocationGpu.node_id))
    standing_now = (Cordon.node_id.in_(ids), cordons.those_that_stand(unit.now))
    num_cordons = _counts(unit, select(Cordon.node_id, func.count()).where(*standing_now).group_by(Cordon.node_id))
    return [ListedNode(node, standings[node.id], held.get(node.id, 0), num_cordons.get(node.id, 0)) for node in nodes]


def _counts(unit: UnitOfWork, query: Select[*tuple[Any, ...]]) -> dict[NodeId, int]:
    return {row[0]: row[1] for row in unit.session.execute(query)}


def _cordons_of(unit: UnitOfWork, node_id: NodeId) -> Sequence[Cordon]:
    its_gpus = select(Gpu.uuid).where(Gpu.node_id == node_id)
    query = select(Cordon).where(
        or_(Cordon.node_id == node_id, Cordon.gpu_uuid.in_(its_gpus)), cordons.those_that_stand(unit.now)
    )
    return unit.session.scalars(query.order_by(Cordon.created_at.desc(), Cordon.id)).all()
