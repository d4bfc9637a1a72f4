"""The jobs that a cycle reads when more are pending than it takes: the oldest of each kind, tenant and tier.

Jobs of one kind fit or fail together, so the oldest stand for the others: ten thousand that cannot start hide no job
that can, of another kind, tenant or tier. Within one kind, and where one tenant's jobs are all of different kinds, the
oldest are first. Jobs with a firm start come before all others. With places for four jobs, ``a1 a2 a3`` of one kind
and ``b1 b2`` of another, in that order of age:

    number in its kind   a1 1   a2 2   a3 3   b1 1   b2 2
    the head             a1     a2            b1     b2
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from muster.db.models import Job
from muster.db.pipeline.packed_arrays import within
from muster.domain.ids import JobId, TenantId
from muster.domain.job.request import JobRequest
from muster.domain.policy.document import Policy
from muster.domain.states import JobState

MAX_QUEUE: Final = 10_000

# A kind: all that decides where a gang may be placed, and the logarithm of its wall time, by which it may backfill.
_RANKED: Final = text(
    """
    WITH waiting AS (
        SELECT id, tenant_id, tier, created_at, COALESCE(request, spec) AS request,
            coalesce(jsonb_exists(wait_verdict, 'firm_start'), false) AS is_firm
        FROM jobs WHERE state = 'QUEUED'
        UNION ALL
        SELECT id, tenant_id, tier, created_at, request::jsonb, false
        FROM unnest(CAST(:ids AS text[]), CAST(:tenants AS text[]), CAST(:tiers AS text[]),
            CAST(:moments AS timestamptz[]), CAST(:requests AS text[]))
            AS in_thought (id, tenant_id, tier, created_at, request)
    ), of_kind AS (
        SELECT id, tenant_id, tier, created_at, is_firm, row_number() OVER (
            PARTITION BY tenant_id, tier, request->'shape', request->'topology', request->'layout',
                request->'node_labels',
                round(ln(coalesce((request->>'wall_time_s')::float, 0) + 1))
            ORDER BY created_at, id
        ) AS number
        FROM waiting
    ), of_line AS (
        SELECT id, tier, created_at, is_firm, row_number() OVER (
            PARTITION BY tenant_id, tier ORDER BY number, created_at, id
        ) AS number
        FROM of_kind
    )
    SELECT id FROM of_line LEFT JOIN unnest(CAST(:by_priority AS text[])) WITH ORDINALITY AS tiers (name, place)
        ON tiers.name = of_line.tier
    ORDER BY is_firm DESC, number, place NULLS LAST, created_at, id
    LIMIT :most
    """
)


@dataclass(frozen=True, slots=True)
class InThought:
    """A job that is not submitted: it has the place that it would have."""

    job_id: JobId
    tenant_id: TenantId
    request: JobRequest
    at: datetime


@dataclass(frozen=True, slots=True)
class Head:
    """The head of the queue, the oldest first. ``sees_thought``: whether the unsubmitted job would be in it."""

    jobs: list[Job]
    sees_thought: bool = True


def queue_head(session: Session, policy: Policy, thought: InThought | None = None) -> Head:
    """Return at most ``MAX_QUEUE`` jobs that are QUEUED."""
    queued = select(Job).where(Job.state == JobState.QUEUED).order_by(Job.created_at, Job.id)
    num_others = 0 if thought is None else 1
    rows = list(session.scalars(queued.limit(MAX_QUEUE + 1 - num_others)))
    if len(rows) + num_others <= MAX_QUEUE:
        return Head(rows)
    seen = {row.id for row in session.execute(_RANKED, _parameters(policy, () if thought is None else (thought,)))}
    oldest = [job for job in rows if job.id in seen]
    others = session.scalars(queued.where(within(Job.id, sorted(seen.difference(job.id for job in oldest)))))
    jobs = sorted((*oldest, *others), key=lambda job: (job.created_at, job.id))
    return Head(jobs, thought is None or thought.job_id in seen)


def _parameters(policy: Policy, thoughts: Sequence[InThought]) -> Mapping[str, Any]:
    tiers = sorted(policy.tiers, key=lambda name: (-policy.tiers[name].priority, name))
    return {
        "ids": [each.job_id for each in thoughts],
        "tenants": [each.tenant_id for each in thoughts],
        "tiers": [each.request.tier for each in thoughts],
        "moments": [each.at for each in thoughts],
        "requests": [each.request.model_dump_json() for each in thoughts],
        "by_priority": tiers,
        "most": MAX_QUEUE,
    }
