"""The statement that writes a placed gang: its attempt, hosts, allocation and GPUs, and what became of its job."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from muster.db.models import Job
from muster.db.pipeline.pg_pipeline import Query
from muster.db.queries.gangs import Parts, places
from muster.db.stored_values import stored_value
from muster.domain.ids import AllocationId, AttemptId, Fence
from muster.domain.job.spec import NodeLossRule
from muster.domain.states import AllocationState, AttemptState, HostPartState

_WRITE: Final = r"""
WITH attempt AS (
    INSERT INTO attempts (id, job_id, tenant_id, number, fence, state, placed_at, on_node_loss, rendezvous_address,
        rendezvous_port, num_nodes, version)
    SELECT %(attempt_id)s, id, tenant_id, %(number)s, %(fence)s, %(placed)s, %(now)s, %(on_node_loss)s, %(address)s,
        %(rendezvous_port)s, %(num_nodes)s, 1
    FROM jobs WHERE id = %(job_id)s AND version = %(version)s
), host AS (
    INSERT INTO attempt_hosts (attempt_id, node_id, node_rank, state, rung_at, ring_count, is_past_lease)
    SELECT %(attempt_id)s, node_id, place - 1, %(unclaimed)s, %(now)s, 1, false
    FROM unnest((SELECT string_to_array(%(nodes)s, E'\x1f'))) WITH ORDINALITY AS part (node_id, place)
), allocation AS (
    INSERT INTO allocations (id, attempt_id, job_id, tenant_id, tier, state, created_at, num_gpus)
    VALUES (%(allocation_id)s, %(attempt_id)s, %(job_id)s, %(tenant_id)s, %(tier)s, %(assigned)s, %(now)s, %(num_gpus)s)
), gpu AS (
    INSERT INTO allocation_gpus (allocation_id, gpu_uuid, node_id, node_rank, local_index, state)
    SELECT %(allocation_id)s, unnest(uuids), node_id, place - 1, generate_subscripts(uuids, 1) - 1, %(assigned)s
    FROM (
        SELECT node_id, place, string_to_array(uuids, E'\x1f') AS uuids
        FROM unnest((SELECT string_to_array(%(nodes)s, E'\x1f')), (SELECT string_to_array(%(uuids_by_host)s, E'\x1e')))
            WITH ORDINALITY AS part (node_id, uuids, place)
    ) AS host
)
UPDATE jobs SET state = %(state)s, state_reason = %(state_reason)s, wait_verdict = NULL, updated_at = %(updated_at)s,
    restarts_used = %(restarts_used)s, launch_failures = %(launch_failures)s, next_try_at = %(next_try_at)s,
    version = version + 1
WHERE id = %(job_id)s AND version = %(version)s
"""  # of a job with another version there is no attempt, and without it the hosts' trigger refuses all the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """One attempt as it is placed. ``parts`` in node rank order; of ``ports`` the fence chooses one."""

    attempt_id: AttemptId
    allocation_id: AllocationId
    number: int
    fence: Fence
    on_node_loss: NodeLossRule
    address: str
    ports: range
    parts: Parts


def written(job: Job, gang: Gang, now: datetime) -> Query:
    """Return the statement that stores the attempt with its fence, its hosts, its allocation, and the job's changes.

    It fails (``IntegrityError``) where the job has another version than the one that was locked.
    """
    parts = [part for _, part in gang.parts]
    return _WRITE, {
        "attempt_id": gang.attempt_id,
        "allocation_id": gang.allocation_id,
        "number": gang.number,
        "fence": gang.fence,
        "on_node_loss": gang.on_node_loss.value,
        "address": gang.address,
        "rendezvous_port": gang.ports.start + gang.fence % len(gang.ports),
        "num_nodes": len(parts),
        "num_gpus": sum(map(len, parts)),
        **places(gang.parts),
        "placed": AttemptState.PLACED.value,
        "unclaimed": HostPartState.UNCLAIMED.value,
        "assigned": stored_value(AllocationState.ASSIGNED),
        "now": now,
        "job_id": job.id,
        "tenant_id": job.tenant_id,
        "tier": job.tier,
        "version": job.version,
        "state": job.state.value,
        "state_reason": job.state_reason,
        "restarts_used": job.restarts_used,
        "launch_failures": job.launch_failures,
        "next_try_at": job.next_try_at,
        "updated_at": job.updated_at,
    }
