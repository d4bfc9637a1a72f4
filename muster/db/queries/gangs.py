"""A gang's places as a placement's commit locks them: the job, its tenant, its GPUs, then what else is asked of them.

The lock and the question are two statements on purpose: in READ COMMITTED a statement sees what was committed when it
began, so what one statement asks in addition to its lock may be older than the lock. They travel in one go all the
same. The rows that are locked are never older: one that was waited for is read and asked again as it is then.

Ids travel joined, as one text each: the driver's own lists cost a call an element, which is most of what a gang of
thousands would cost here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from muster.db.models import Job
from muster.db.pipeline.batched import query_together
from muster.db.pipeline.packed_arrays import PART_SEPARATOR, TEXT_SEPARATOR, joined_parts, joined_texts
from muster.db.queries.cluster import NEXT_FENCE, node_filter_of
from muster.db.queries.gang_facts import ARE_ALL_REPORTED, KINDS_OF_FEW, KINDS_OF_GANG
from muster.db.queries.tenants import GUARANTEES, LOCK_GUARANTEES
from muster.domain.ids import Fence, GpuUuid, JobId, NodeId
from muster.domain.states import Contact, JobState, Standing

LARGE: Final = 64
"""GPUs from which on a gang's are found host by host, and what is rare is read once: a look-up a GPU would be most of
the commit.
"""
_LOCK: Final = r"""
WITH job AS (
        SELECT id, tenant_id, name, tier, state, state_reason, COALESCE(request, spec) AS request, submitted_by,
            created_at, updated_at, restarts_used, launch_failures, oom_doublings, next_try_at, cancel_requested_at,
            version
        FROM jobs WHERE id = %%(job_id)s FOR NO KEY UPDATE),
    tenant AS (SELECT id FROM tenants WHERE id = (SELECT tenant_id FROM job) FOR KEY SHARE),
    gpu AS (
        SELECT uuid, cohort_key, standing, standing_since, is_mig_enabled
        FROM gpus WHERE %s AND EXISTS (SELECT FROM tenant)
        ORDER BY uuid FOR NO KEY UPDATE
    )
SELECT job.id, tenant_id, name, tier, state, state_reason, request, submitted_by, created_at, updated_at, restarts_used,
    launch_failures, oom_doublings, next_try_at, cancel_requested_at, version, kind.*
FROM job LEFT JOIN (%s) AS kind ON true
"""  # none is locked before the job is
# A tenant's first limit and its move lock its row FOR UPDATE: one transaction sees what the other did (I6).
_LOCK_FEW: Final = _LOCK % (
    r"uuid = ANY(string_to_array(%(uuids)s, E'\x1f'))",
    "SELECT count(*) AS num_gpus FROM gpu",  # counted, so that none is left out
)
_LOCK_LARGE: Final = _LOCK % (
    r"""node_id = ANY(string_to_array(%(nodes)s, E'\x1f'))
            AND ((uuid, node_id) IN (
                SELECT unnest(string_to_array(uuids, E'\x1f')), node_id
                FROM unnest(string_to_array(%(nodes)s, E'\x1f'), string_to_array(%(uuids_by_host)s, E'\x1e'))
                    AS part (node_id, uuids)
            )) IS TRUE""",  # as ``admission.among`` says
    """
    SELECT min(uuid) AS uuid, count(*) AS num_gpus, cohort_key, standing, is_mig_enabled, since AS standing_since
    FROM gpu CROSS JOIN LATERAL (SELECT CASE WHEN standing = 'PROBATION' THEN standing_since END AS since) AS probation
    GROUP BY cohort_key, standing, is_mig_enabled, since""",
)
Parts = Sequence[tuple[NodeId, Sequence[GpuUuid]]]
"""The GPUs of each host, in node rank order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """GPUs that admission cannot distinguish: how many, one of them, what it asks of each
    (``control.fleet.inventory.facts_of``), whether they are held for another job.
    """

    uuid: GpuUuid
    num_gpus: int
    cohort_key: str
    standing: Standing
    standing_since: datetime | None
    is_mig_enabled: bool
    contact: Contact = Contact.LIVE
    is_cordoned: bool = False
    is_assigned: bool = False
    is_burning_in: bool = False
    is_reported: bool = False
    is_on_hold: bool = False
    override: str | None = None


@dataclass(frozen=True, slots=True)
class Locked:
    """The rows that a placement's commit locked, and the fence that it may use.

    ``job``: None when there is no such job. The session does not follow it: ``gang_rows.written`` stores its changes.
    ``kinds``: of the GPUs that are on the planned host. ``of_job``: its first host's ``address``, whether its tenant
    ``has_ceiling`` in its tier, whether any tenant ``has_residency``, the ``last_number`` of its attempts, whether it
    ``has_holds`` still; None where there are no kinds. ``guarantees``: as ``queries.tenants.GUARANTEES`` has them,
    until the commit.
    """

    job: Job | None
    kinds: Sequence[Kind]
    of_job: Any
    fence: Fence
    guarantees: str


_OF_KIND: Final = frozenset(each.name for each in fields(Kind))


def lock(session: Session, job_id: JobId, parts: Parts, now: datetime) -> Locked:
    """Lock the job's row, its tenant's, its GPUs in id order, and the next fence until the commit: in one round trip.

    A second one reads the facts of a large gang GPU by GPU, where one of them has facts outside its own row.
    """
    asked = {"job_id": job_id, **places(parts), "first_node": parts[0][0], "now": now}
    is_large = sum(len(part) for _, part in parts) >= LARGE
    locking, asking = (_LOCK_LARGE, ARE_ALL_REPORTED) if is_large else (_LOCK_FEW, KINDS_OF_FEW)
    statements = LOCK_GUARANTEES, GUARANTEES, (locking, asked), (asking, asked), NEXT_FENCE
    _, [(guarantees,)], locked, told, fence = query_together(session, *statements)
    kinds = told
    if is_large and told[0].is_all_told:
        kinds = [row for row in locked if row.num_gpus is not None]
    elif is_large:
        (kinds,) = query_together(session, (KINDS_OF_GANG, asked))
    job = _job_of(locked[0]) if locked else None
    return Locked(job, [_kind_of(row) for row in kinds], told[0] if told else None, node_filter_of(fence), guarantees)


def _kind_of(row: Any) -> Kind:
    said = {name: value for name, value in row._asdict().items() if name in _OF_KIND}
    said["standing"] = Standing(said["standing"])
    said["contact"] = Contact(said.get("contact", Contact.LIVE))
    return Kind(**said)


def places(parts: Parts) -> dict[str, str]:
    """Return the hosts in rank order, the GPUs of each, and all GPUs."""
    by_host = joined_parts([part for _, part in parts])
    return {
        "nodes": joined_texts([node_id for node_id, _ in parts]),
        "uuids_by_host": by_host,
        "uuids": by_host.replace(PART_SEPARATOR, TEXT_SEPARATOR),
    }


def _job_of(row: Any) -> Job:
    job = Job(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        tier=row.tier,
        state=JobState(row.state),
        state_reason=row.state_reason,
        spec={},  # not read: the change of the row that follows does not contain it
        submitted_by=row.submitted_by,
        created_at=row.created_at,
        updated_at=row.updated_at,
        restarts_used=row.restarts_used,
        launch_failures=row.launch_failures,
        oom_doublings=row.oom_doublings,
        next_try_at=row.next_try_at,
        cancel_requested_at=row.cancel_requested_at,
    )
    set_committed_value(job, "request", row.request)
    job.version = row.version
    return job
