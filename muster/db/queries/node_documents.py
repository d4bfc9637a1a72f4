"""A node with all that is there, by one statement."""

from datetime import datetime
from typing import Final

import msgspec

from muster.db.pipeline.records import CordonRecord, GpuRecord, NodeLatestRecord, NodeRecord
from muster.db.queries.json_query import Question
from muster.domain.ids import AttemptId, GpuUuid, JobId, TenantId
from muster.domain.states import AllocationState, AttemptState, Standing, StopReason


class GpuOnNode(msgspec.Struct, frozen=True):
    """A GPU of a node. ``override``: the newest standing in force that a person has set."""

    gpu: GpuRecord
    override: Standing | None


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

    ``levels``: the policy's, widest first. ``gpus``: by slot. ``cordons``: those in force on the node and its GPUs, the
    newest first. ``jobs``: the longest there first, until their GPUs are proved clean; ``num_held``: the number of
    these GPUs. ``failing_saves``: those that stand (``control.incidents.storage_blame``), the newest failure first; at
    most twenty.
    """

    node: NodeRecord
    levels: list[str]
    latest: NodeLatestRecord | None
    gpus: list[GpuOnNode]
    num_held: int
    cordons: list[CordonRecord]
    jobs: list[JobOnNode]
    failing_saves: list[FailingSaves]


NODE: Final = Question(
    """
    SELECT json_build_object(
        'node', (SELECT to_json(r) FROM (
            SELECT n.id, n.name, n.contact, n.boot_id, n.last_heartbeat_at, n.lease_renewed_at, n.address, n.num_gpus,
                n.is_simulated, n.rack, n.labels, n.rdma_ports, n.agent_version, n.created_at, n.version
        ) AS r),
        'levels', COALESCE((
            SELECT p.document #> '{placement,levels}' FROM policy_versions AS p WHERE p.is_active
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
        'num_held', (
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
                a.number AS attempt_number, a.state AS attempt_state, a.stop_reason, a.stop_deadline_at, l.state,
                json_agg(g.gpu_uuid ORDER BY g.gpu_uuid) AS gpus
            FROM gpus AS d
            JOIN allocation_gpus AS g ON g.gpu_uuid = d.uuid AND g.state IN ('HELD', 'CLEANING')
            JOIN allocations AS l ON l.id = g.allocation_id
            JOIN attempts AS a ON a.id = l.attempt_id
            JOIN jobs AS j ON j.id = l.job_id
            WHERE d.node_id = n.id
            GROUP BY l.id, a.id, j.id
        ) AS r), '[]'),
        'failing_saves', COALESCE((
            SELECT json_agg(to_json(r) ORDER BY r.last_at DESC, r.place, r.job_id) FROM (
                SELECT s.* FROM storage_faults AS s
                WHERE s.node_id = n.id AND s.cleared_at IS NULL
                    AND s.last_at > %(now)s - make_interval(secs => COALESCE((
                        SELECT (p.document #>> '{training,storage,window_s}')::float8
                        FROM policy_versions AS p WHERE p.is_active
                    ), 86400))
                ORDER BY s.last_at DESC, s.place, s.job_id LIMIT 20
            ) AS r
        ), '[]')
    )
    FROM nodes AS n WHERE n.id = %(node)s OR n.name = %(node)s ORDER BY n.id = %(node)s DESC LIMIT 1
    """,
    NodeView,
)
"""The node whose id or name is ``node``, at ``now``."""
