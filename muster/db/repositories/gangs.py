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

from sqlalchemy import (
    ARRAY,
    BindParameter,
    ColumnElement,
    Select,
    Text,
    any_,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql.psycopg import dialect
from sqlalchemy.orm import Session

from muster.db.exchanges import Asked
from muster.db.models import Attempt, Gpu, GpuHold, Job, Node, Quota, Reclaim, Tenant
from muster.db.packed_arrays import joined_texts
from muster.db.pipelined import ask_together
from muster.db.repositories.admission import FACTS_OF_FEW, among, facts_of_gang, one_by_one
from muster.db.repositories.cluster import NEXT_FENCE, fence_of
from muster.domain.ids import AllocationId, AttemptId, Fence, GpuUuid, JobId, NodeId
from muster.domain.job_spec import NodeLossRule
from muster.domain.states import AllocationState, AttemptState, Contact, HostPartState, JobState, Standing

LARGE: Final = 64
"""GPUs from which on a gang's are found host by host, and what is rare is read once: a look-up a GPU would be most of
the commit.
"""
_LOCK: Final = r"""
WITH job AS (SELECT * FROM jobs WHERE id = %%(job_id)s FOR NO KEY UPDATE),
    tenant AS (SELECT id FROM tenants WHERE id = (SELECT tenant_id FROM job) FOR KEY SHARE),
    gpu AS (
        SELECT uuid FROM gpus WHERE %s AND EXISTS (SELECT FROM tenant)
        ORDER BY uuid FOR NO KEY UPDATE
    )
SELECT job.id, tenant_id, name, tier, state, state_reason, spec, submitted_by, created_at, updated_at, restarts_used,
    launch_failures, oom_doublings, next_try_at, cancel_requested_at, version, (SELECT count(*) FROM gpu)
FROM job
"""  # counted, so that none is left out; and none is locked before the job is
# The tenant's row is locked FOR UPDATE by who gives it its first limit or moves it: one sees what the other did (I6).
_LOCK_FEW: Final = _LOCK % r"uuid = ANY(string_to_array(%(uuids)s, E'\x1f'))"
_LOCK_LARGE: Final = (
    _LOCK
    % r"""node_id = ANY(string_to_array(%(nodes)s, E'\x1f'))
            AND (uuid IN (SELECT unnest(string_to_array(%(uuids)s, E'\x1f')))) IS TRUE"""
)  # as ``admission.among`` says


def _joined(name: str) -> Any:
    return func.string_to_array(bindparam(name, type_=Text), literal_column(r"E'\x1f'"), type_=ARRAY(Text))


def _array(name: str) -> Any:
    """Through a subquery the planner takes the array to be as long in a plan for these parameters as in one for any,
    and so keeps the latter: to plan a query of this size anew takes three times as long as to run it.
    """
    return func.array(select(func.unnest(_joined(name))).scalar_subquery())


_JOB_ID: Final[BindParameter[str]] = bindparam("job_id", type_=Text)
_PLANNED: Final = among(select(func.unnest(_joined("uuids")), func.unnest(_joined("gpu_nodes"))), Gpu.uuid, Gpu.node_id)
_SINCE: Final = case((Gpu.standing == literal_column(f"'{Standing.PROBATION.value}'"), Gpu.standing_since))
_FOR_OTHERS: Final = select(GpuHold.gpu_uuid).where(GpuHold.job_id != _JOB_ID)


def _alike(facts: Select[*tuple[Any, ...]], is_promised: ColumnElement[bool]) -> str:
    """GPUs that admission cannot tell apart, each kind with its number and one of them; and beside it what the commit
    asks of the job.
    """
    told = [each for each in facts.selected_columns if each.key not in _APART]
    one = facts.with_only_columns(
        Gpu.uuid, *told, _SINCE.label("standing_since"), is_promised.label("is_promised")
    ).where(_PLANNED)
    uuid, *kind = one.subquery("one").columns
    kinds = select(func.min(uuid).label("uuid"), func.count().label("num_gpus"), *kind).group_by(*kind).subquery("kind")
    query = select(
        kinds,
        select(Node.address).where(Node.id == bindparam("first_node", type_=Text)).scalar_subquery().label("address"),
        exists()
        .where(
            Job.id == _JOB_ID,
            Tenant.id == Job.tenant_id,
            Quota.tier == Job.tier,
            or_(Quota.tenant_id == Tenant.id, Tenant.parent_id.is_not(None)),
        )
        .correlate(None)
        .label("has_ceiling"),
        select(func.max(Attempt.number)).where(Attempt.job_id == _JOB_ID).scalar_subquery().label("last_number"),
        or_(
            exists().where(Reclaim.beneficiary_job_id == _JOB_ID, Reclaim.hold_ended_at.is_(None)),
            exists().where(GpuHold.job_id == _JOB_ID).correlate(None),
        ).label("has_holds"),
    )
    return str(query.compile(dialect=dialect()))  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it untyped


_APART: Final = ("uuid", "node_id", "slot_index", "standing_since", "rack")
"""In which GPUs differ that are alike to admission; ``standing_since`` counts in a probation alone."""
_ASK_FEW: Final = _alike(
    FACTS_OF_FEW.order_by(None).where(Gpu.uuid == any_(_array("uuids"))),
    one_by_one(_FOR_OTHERS.where(GpuHold.gpu_uuid == Gpu.uuid)),
)
_ASK_LARGE: Final = _alike(facts_of_gang(_array("nodes")), among(_FOR_OTHERS, Gpu.uuid))
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
    INSERT INTO allocations (id, attempt_id, job_id, tenant_id, tier, state, created_at, num_gpus)
    VALUES (%(allocation_id)s, %(attempt_id)s, %(job_id)s, %(tenant_id)s, %(tier)s, %(held)s, %(now)s, %(num_gpus)s)
), gpu AS (
    INSERT INTO allocation_gpus (allocation_id, gpu_uuid, node_id, node_rank, local_index, state)
    SELECT %(allocation_id)s, uuid, node_id, node_rank, local_index, %(held)s
    FROM unnest(string_to_array(%(uuids)s, E'\x1f'), string_to_array(%(gpu_nodes)s, E'\x1f'),
        string_to_array(%(node_ranks)s, ',')::int[], string_to_array(%(local_indexes)s, ',')::int[])
        AS one (uuid, node_id, node_rank, local_index)
)
UPDATE jobs SET state = %(state)s, state_reason = %(state_reason)s, wait_verdict = NULL, updated_at = %(updated_at)s,
    restarts_used = %(restarts_used)s, launch_failures = %(launch_failures)s, next_try_at = %(next_try_at)s,
    version = version + 1
WHERE id = %(job_id)s AND version = %(version)s
"""  # of a job with another version there is no attempt, and without it the hosts' foreign key refuses all the rest


Parts = Sequence[tuple[NodeId, Sequence[GpuUuid]]]
"""The GPUs of each host, in node rank order."""


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


@dataclass(frozen=True, slots=True)
class Locked:
    """What a placement's commit found, and the fence that it may give.

    ``job``: None when there is no such job. The session does not follow it: what becomes of it is stored by
    ``written``. ``kinds``: of the GPUs that stand on the host that was planned a row for each kind that admission could
    tell apart: ``num_gpus``, one ``uuid`` of them, the facts of ``admission``, whether they are held for another job;
    and in each row the same of the job: its first host's address, whether its tenant has a ceiling in its tier, the
    number of its last attempt, whether something is still held for it.
    """

    job: Job | None
    kinds: Sequence[Any]
    fence: Fence


def lock(session: Session, job_id: JobId, parts: Parts, now: datetime) -> Locked:
    """The job's row, its tenant's, its GPUs in id order, the next fence, locked until the commit: in one round trip."""
    asked = {"job_id": job_id, **_places(parts), "first_node": parts[0][0], "now": now}
    is_large = sum(len(part) for _, part in parts) >= LARGE
    locking, asking = (_LOCK_LARGE, _ASK_LARGE) if is_large else (_LOCK_FEW, _ASK_FEW)
    jobs, facts, fence = ask_together(session, (locking, asked), (asking, asked), NEXT_FENCE)
    kinds = [row._replace(standing=Standing(row.standing), contact=Contact(row.contact)) for row in facts]
    return Locked(_job_of(jobs[0]) if jobs else None, kinds, fence_of(fence))


def _places(parts: Parts) -> dict[str, str]:
    """The hosts in rank order, and each GPU with its host."""
    return {
        "nodes": joined_texts(node_id for node_id, _ in parts),
        "uuids": joined_texts(uuid for _, part in parts for uuid in part),
        "gpu_nodes": joined_texts(node_id for node_id, part in parts for _ in part),
    }


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
        "num_nodes": len(parts),
        "num_gpus": sum(map(len, parts)),
        **_places(gang.parts),
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
