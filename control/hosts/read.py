"""Nodes, to read: one node with its GPUs, cordons and jobs by one statement."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from control.core.json_query import JsonQuery
from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet.node_places import path_of
from control.fleet.types import CordonRecord, GpuRecord, NodeLatestRecord, NodeRecord
from control.hosts import drains
from control.hosts.node_lists import ListedNode
from control.incidents.read import OF_GPUS_SQL, IncidentRecord
from muster.db.stored_values import present_sql
from muster.domain.errors import NotFoundError
from muster.domain.gpu.effective_standing import effective_standing
from muster.domain.ids import AttemptId, GpuUuid, JobId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import AllocationState, AttemptState, Standing, StopReason
from muster.wire.telemetry import BYTES_PER_GBIT

READ: Final = declare_action("node.read")


class GpuOnNode(msgspec.Struct, frozen=True):
    """A GPU of a node. ``override``: the newest standing in force that a person has set."""

    gpu: GpuRecord
    override: Standing | None

    @property
    def effective_standing(self) -> Standing:
        return effective_standing(self.gpu.standing, self.override)


class JobOnNode(msgspec.Struct, frozen=True):
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
    gpus: list[GpuUuid]


class FailingSaves(msgspec.Struct, frozen=True):
    """Saves of a job that failed from here at a place, and too few that succeeded since."""

    place: str
    is_shared: bool
    kind: str
    job_id: JobId
    num_failures: int
    first_at: datetime
    last_at: datetime


class NodeView(msgspec.Struct, frozen=True):
    """The rows about one node.

    ``levels``: the policy's, widest first. ``gpus``: by slot. ``cordons``: in force on the node and its GPUs, the
    newest first. ``jobs``: the longest there first, until their GPUs are proved clean; ``num_assigned``: the number of
    these GPUs. ``failing_saves``: standing ones (``control.incidents.storage_attribution``), the newest failure
    first; at most twenty. ``incidents``: the open ones about it, its GPUs, or a breaker that holds one of them back.
    """

    node: NodeRecord
    levels: list[str]
    latest: NodeLatestRecord | None
    gpus: list[GpuOnNode]
    num_assigned: int
    cordons: list[CordonRecord]
    jobs: list[JobOnNode]
    failing_saves: list[FailingSaves]
    incidents: list[IncidentRecord] = []


NODE: Final = JsonQuery(
    f"""
    SELECT json_build_object(
        'node', (SELECT to_json(r) FROM (
            SELECT n.id, n.name, n.contact, n.boot_id, n.last_heartbeat_at, n.lease_renewed_at, n.address, n.num_gpus,
                n.is_simulated, n.rack, n.labels, n.rdma_ports, n.agent_version, n.created_at, n.version
        ) AS r),
        'levels', COALESCE((
            SELECT p.document #> '{{placement,levels}}' FROM policy_versions AS p WHERE p.is_active
        ), '["rack"]'),
        'latest', (SELECT to_json(r) FROM (
            SELECT l.boot_id, l.at, l.received_at, l.skew_ms, l.readings FROM node_latest AS l WHERE l.node_id = n.id
        ) AS r),
        'gpus', COALESCE((
            SELECT json_agg(json_build_object('gpu', to_json(g), 'override', (
                SELECT o.standing FROM gpu_overrides AS o
                WHERE o.gpu_uuid = g.uuid AND o.ended_at IS NULL AND o.until > %(now)s
                ORDER BY o.created_at DESC LIMIT 1
            )) ORDER BY g.slot_index)
            FROM gpus AS g WHERE g.node_id = n.id
        ), '[]'),
        'num_assigned', (
            SELECT count(*) FROM gpus AS d JOIN allocation_gpus AS g
                ON g.gpu_uuid = d.uuid AND g.state IN ('HELD', 'CLEANING')
            WHERE d.node_id = n.id
        ),
        'cordons', COALESCE((
            SELECT json_agg(to_json(c) ORDER BY c.created_at DESC, c.id) FROM cordons AS c
            WHERE (c.node_id = n.id OR c.gpu_uuid IN (SELECT g.uuid FROM gpus AS g WHERE g.node_id = n.id))
                AND c.released_at IS NULL AND (c.until IS NULL OR c.until > %(now)s)
                AND (c.starts_at IS NULL OR c.starts_at <= %(now)s)
        ), '[]'),
        'jobs', COALESCE((SELECT json_agg(to_json(r) ORDER BY r.allocation_id) FROM (
            SELECT l.id AS allocation_id, j.id AS job_id, j.name AS job_name, j.tenant_id, j.tier, a.id AS attempt_id,
                a.number AS attempt_number, a.state AS attempt_state, a.stop_reason, a.stop_deadline_at,
                {present_sql("l.state", AllocationState)} AS state,
                json_agg(g.gpu_uuid ORDER BY g.gpu_uuid) AS gpus
            FROM gpus AS d
            JOIN allocation_gpus AS g ON g.gpu_uuid = d.uuid AND g.state IN ('HELD', 'CLEANING')
            JOIN allocations AS l ON l.id = g.allocation_id
            JOIN attempts AS a ON a.id = l.attempt_id
            JOIN jobs AS j ON j.id = l.job_id
            WHERE d.node_id = n.id
            GROUP BY l.id, a.id, j.id
        ) AS r), '[]'),
        'incidents', {
        OF_GPUS_SQL
        % (
            "SELECT n.id UNION ALL SELECT g.uuid FROM gpus AS g WHERE g.node_id = n.id",
            "SELECT g.uuid FROM gpus AS g WHERE g.node_id = n.id",
            "n.id",
        )
    },
        'failing_saves', COALESCE((
            SELECT json_agg(to_json(r) ORDER BY r.last_at DESC, r.place, r.job_id) FROM (
                SELECT s.* FROM storage_faults AS s
                WHERE s.node_id = n.id AND s.cleared_at IS NULL
                    AND s.last_at > %(now)s - make_interval(secs => COALESCE((
                        SELECT (p.document #>> '{{training,storage,window_s}}')::float8
                        FROM policy_versions AS p WHERE p.is_active
                    ), 86400))
                ORDER BY s.last_at DESC, s.place, s.job_id LIMIT 20
            ) AS r
        ), '[]')
    )
    FROM nodes AS n WHERE n.id = %(node)s OR n.name = %(node)s ORDER BY n.id = %(node)s DESC LIMIT 1
    """,  # noqa: S608  # words of ours; what a caller sends is bound
    NodeView,
)
"""The node whose id or name is ``node``, at ``now``."""


class PortRates(NamedTuple):
    """Rates of a network port in its host's newest report. ``saturation``: the busier direction by the link's speed."""

    name: str
    sent_bytes_per_s: float
    received_bytes_per_s: float
    link_gbps: float | None
    saturation: float | None


def port_rates_in(latest: NodeLatestRecord | None) -> list[PortRates]:
    """Return the ports that are up; none of an agent of an earlier release."""
    stored = [] if latest is None else (latest.readings or {}).get("port_throughput") or []
    return [_port_rates(*each) for each in stored]


def _port_rates(name: str, sent: float, received: float, link_gbps: float | None = None) -> PortRates:
    share = None if link_gbps is None else min(max(sent, received) / (link_gbps * BYTES_PER_GBIT), 1.0)
    return PortRates(name, sent, received, link_gbps, share)


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
    incidents: Sequence[IncidentRecord]

    @property
    def node(self) -> NodeRecord:
        return self.listed.node

    @property
    def ports(self) -> list[PortRates]:
        return port_rates_in(self.latest)

    def is_cordoned(self, gpu: GpuRecord) -> bool:
        return _is_cordoned(gpu, self.cordons)

    @property
    def drain(self) -> CordonRecord | None:
        """The cordon of the drain that stands; the drain is done when no job is left."""
        return next((cordon for cordon in self.cordons if cordon.reason_code == drains.REASON_CODE), None)


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
    listed = ListedNode(
        node,
        standings=Counter(each.gpu.standing for each in found.gpus),
        effective_standings=Counter(each.effective_standing for each in found.gpus),
        num_assigned=found.num_assigned,
        num_cordons=own_cordons,
        num_cordoned=sum(_is_cordoned(each.gpu, found.cordons) for each in found.gpus),
    )
    return NodeDetail(
        listed=listed,
        place=(*place, ("node", node.name)),
        latest=found.latest,
        gpus=found.gpus,
        cordons=found.cordons,
        jobs=found.jobs,
        failing_saves=found.failing_saves,
        incidents=found.incidents,
    )


def _is_cordoned(gpu: GpuRecord, in_force: Sequence[CordonRecord]) -> bool:
    return any(cordon.gpu_uuid == gpu.uuid or cordon.node_id == gpu.node_id for cordon in in_force)
