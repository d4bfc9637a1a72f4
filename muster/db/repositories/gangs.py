"""The statements of a placement's commit: lock, ask, write; each takes the whole gang at once.

Who locks and who asks are two statements on purpose: in READ COMMITTED a statement sees what was committed when it
began, so what one statement asks beside its lock may be older than the lock. They travel in one go all the same.

Ids and ranks travel joined, as one text each: the driver's own lists cost a call an element, which is most of what a
gang of thousands would cost here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ARRAY, BindParameter, Text, any_, bindparam, exists, func, literal_column, or_, select
from sqlalchemy.dialects.postgresql.psycopg import dialect
from sqlalchemy.orm import Session

from muster.db.exchanges import Asked
from muster.db.models import Attempt, Gpu, GpuHold, Job, Node, Quota, Reclaim
from muster.db.packed_arrays import joined_texts
from muster.db.pipelined import ask_together
from muster.db.repositories.admission import FACTS_OF_FEW, one_by_one
from muster.db.repositories.cluster import NEXT_FENCE, fence_of
from muster.domain.ids import AllocationId, AttemptId, Fence, GpuUuid, JobId, NodeId
from muster.domain.job_spec import NodeLossRule
from muster.domain.states import AllocationState, AttemptState, Contact, HostPartState, JobState, Standing

_LOCK: Final = r"""
WITH job AS (SELECT * FROM jobs WHERE id = %(job_id)s FOR NO KEY UPDATE),
    gpu AS (
        SELECT uuid FROM gpus WHERE uuid = ANY(string_to_array(%(uuids)s, E'\x1f')) AND EXISTS (SELECT FROM job)
        ORDER BY uuid FOR NO KEY UPDATE
    )
SELECT job.id, tenant_id, name, tier, state, state_reason, spec, submitted_by, created_at, updated_at, restarts_used,
    launch_failures, oom_doublings, next_try_at, cancel_requested_at, version, (SELECT count(*) FROM gpu)
FROM job
"""  # counted, so that none is left out; and none is locked before the job is
# Through a subquery the planner takes the array to be as long in a plan for these parameters as in one for any, and so
# keeps the latter: to plan this query anew takes three times as long as to run it.
_JOINED: Final = func.string_to_array(bindparam("uuids", type_=Text), literal_column(r"E'\x1f'"), type_=ARRAY(Text))
_UUIDS: Final = func.array(select(func.unnest(_JOINED)).scalar_subquery())
_JOB_ID: Final[BindParameter[str]] = bindparam("job_id", type_=Text)
_FACTS: Final = FACTS_OF_FEW.where(Gpu.uuid == any_(_UUIDS)).add_columns(
    Node.address,
    one_by_one(select(GpuHold.gpu_uuid).where(GpuHold.gpu_uuid == Gpu.uuid, GpuHold.job_id != _JOB_ID)).label(
        "is_promised"
    ),
    exists()
    .where(Job.id == _JOB_ID, Quota.tenant_id == Job.tenant_id, Quota.tier == Job.tier)
    .correlate(None)
    .label("has_ceiling"),
    select(func.max(Attempt.number)).where(Attempt.job_id == _JOB_ID).scalar_subquery().label("last_number"),
    or_(
        exists().where(Reclaim.beneficiary_job_id == _JOB_ID, Reclaim.hold_ended_at.is_(None)),
        exists().where(GpuHold.job_id == _JOB_ID).correlate(None),
    ).label("has_holds"),
)
_ASK: Final = str(_FACTS.compile(dialect=dialect()))  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it untyped
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
    FROM unnest(string_to_array(%(nodes)s, E'\x1f')) WITH ORDINALITY AS part (node_id, place)
), allocation AS (
    INSERT INTO allocations (id, attempt_id, job_id, tenant_id, tier, state, created_at)
    VALUES (%(allocation_id)s, %(attempt_id)s, %(job_id)s, %(tenant_id)s, %(tier)s, %(held)s, %(now)s)
), gpu AS (
    INSERT INTO allocation_gpus (allocation_id, gpu_uuid, node_id, node_rank, local_index, state)
    SELECT %(allocation_id)s, uuid, node_id, node_rank, local_index, %(held)s
    FROM unnest(string_to_array(%(uuids)s, E'\x1f'), string_to_array(%(gpu_nodes)s, E'\x1f'),
        string_to_array(%(node_ranks)s, ',')::int[], string_to_array(%(local_indexes)s, ',')::int[])
        AS one (uuid, node_id, node_rank, local_index)
)
UPDATE jobs SET state = %(state)s, state_reason = %(state_reason)s, updated_at = %(updated_at)s,
    restarts_used = %(restarts_used)s, launch_failures = %(launch_failures)s, next_try_at = %(next_try_at)s,
    version = version + 1
WHERE id = %(job_id)s AND version = %(version)s
"""  # of a job with another version there is no attempt, and without it the hosts' foreign key refuses all the rest


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
    parts: Sequence[tuple[NodeId, Sequence[GpuUuid]]]


@dataclass(frozen=True, slots=True)
class Locked:
    """What a placement's commit found, and the fence that it may give.

    ``job``: None when there is no such job. The session does not follow it: what becomes of it is stored by
    ``written``. ``gpus``: a row each: ``FACTS_OF_FEW``, its node's address, whether it is held for another job; and in
    each row the same of the job: whether its tenant has a ceiling in its tier, the number of its last attempt, whether
    something is still held for it.
    """

    job: Job | None
    gpus: Sequence[Any]
    fence: Fence


def lock(session: Session, job_id: JobId, uuids: Sequence[GpuUuid], now: datetime) -> Locked:
    """The job's row, then its GPUs in id order, then the next fence, locked until the commit: in one round trip."""
    of_job = {"job_id": job_id, "uuids": joined_texts(uuids)}
    jobs, facts, fence = ask_together(session, (_LOCK, of_job), (_ASK, {**of_job, "now": now}), NEXT_FENCE)
    gpus = [row._replace(standing=Standing(row.standing), contact=Contact(row.contact)) for row in facts]
    return Locked(_job_of(jobs[0]) if jobs else None, gpus, fence_of(fence))


def _job_of(row: Any) -> Job:
    job = Job(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        tier=row.tier,
        state=JobState(row.state),
        state_reason=row.state_reason,
        spec=row.spec,
        submitted_by=row.submitted_by,
        created_at=row.created_at,
        updated_at=row.updated_at,
        restarts_used=row.restarts_used,
        launch_failures=row.launch_failures,
        oom_doublings=row.oom_doublings,
        next_try_at=row.next_try_at,
        cancel_requested_at=row.cancel_requested_at,
    )
    job.version = row.version
    return job


def written(job: Job, gang: Gang, now: datetime) -> Asked:
    """The statement that stores the attempt with its fence, its hosts, its allocation, and what was decided of the job.

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
        "num_nodes": len(gang.parts),
        "nodes": joined_texts(node_id for node_id, _ in gang.parts),
        "uuids": joined_texts(uuid for part in parts for uuid in part),
        "gpu_nodes": joined_texts(node_id for node_id, part in gang.parts for _ in part),
        "node_ranks": ",".join(str(node_rank) for node_rank, part in enumerate(parts) for _ in part),
        "local_indexes": ",".join(str(local_index) for part in parts for local_index in range(len(part))),
        "placed": AttemptState.PLACED.value,
        "unclaimed": HostPartState.UNCLAIMED.value,
        "held": AllocationState.HELD.value,
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
