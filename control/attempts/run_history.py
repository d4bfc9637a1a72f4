"""Run times of earlier jobs of the same tenant, name and shape, for jobs without a wall time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from muster.domain.policy.document import Policy
from scheduler.forecast.history import predicted_s
from scheduler.model import RunningAttempt, WaitingJob, Workload

MOST_KINDS: Final = 1_000
"""Number of kinds of jobs whose past is read, in the order of the queue: each is a look-up or two."""
NEWEST_RUNS: Final = 20
NEWEST_OF_NAME: Final = 200
"""Number of jobs of a name among which the shape is searched: a name may have been run any number of times."""

_RUNS: Final = text(
    """
    SELECT wanted.number, array_agg(run.run_s)
    FROM unnest(CAST(:tenants AS text[]), CAST(:names AS text[]), CAST(:nodes AS int[]), CAST(:gpus AS int[]))
        WITH ORDINALITY AS wanted (tenant_id, name, nodes, gpus_per_node, number)
    CROSS JOIN LATERAL (
        SELECT (
            SELECT sum(extract(epoch FROM attempts.ended_at - attempts.running_at))
            FROM attempts WHERE attempts.job_id = jobs.id
        ) AS run_s
        FROM (
            SELECT id, COALESCE(request, spec)->'shape' AS shape, finished_at
            FROM jobs AS named
            WHERE named.tenant_id = wanted.tenant_id AND named.name = wanted.name AND named.state = 'SUCCEEDED'
            ORDER BY named.finished_at DESC
            LIMIT :newest_of_name
        ) AS jobs
        WHERE (jobs.shape->>'nodes')::int = wanted.nodes
            AND (jobs.shape->>'gpus_per_node')::int = wanted.gpus_per_node
        ORDER BY jobs.finished_at DESC
        LIMIT :newest
    ) AS run
    WHERE run.run_s IS NOT NULL
    GROUP BY wanted.number
    """
)


_Kind = tuple[str, str, int, int]
"""Tenant, name, and the shape by hosts and GPUs of each."""
_KINDS_OF: Final = text(
    """
    SELECT attempts.id, jobs.tenant_id, jobs.name, (shape->>'nodes')::int, (shape->>'gpus_per_node')::int
    FROM attempts JOIN jobs ON jobs.id = attempts.job_id
        CROSS JOIN LATERAL (SELECT COALESCE(jobs.request, jobs.spec)->'shape') AS requested (shape)
    WHERE attempts.id = ANY(:attempts)
    """
)


def with_predictions(session: Session, queue: Sequence[WaitingJob], policy: Policy) -> list[WaitingJob]:
    """Return each job with its ``predicted_s``, where it has no wall time and enough similar jobs have ended well."""
    found = _predicted_s(session, [_kind(job) for job in queue if job.expected_s is None], policy)
    return [job if job.expected_s is not None else replace(job, predicted_s=found.get(_kind(job))) for job in queue]


def with_predicted_ends(session: Session, running: Workload, policy: Policy) -> Workload:
    """Return each attempt with its ``predicted_ms``, where nothing ends it and enough similar jobs have ended well."""
    asked = [str(attempt.attempt_id) for attempt in running.running if attempt.ends_ms is None]
    if not asked:
        return running
    kinds: dict[str, _Kind] = {row[0]: tuple(row[1:]) for row in session.execute(_KINDS_OF, {"attempts": asked})}
    found = _predicted_s(session, list(kinds.values()), policy)

    def end_ms(attempt: RunningAttempt) -> int | None:
        run_s = found.get(kinds[attempt.attempt_id]) if attempt.attempt_id in kinds else None
        return None if run_s is None else attempt.started_ms + int(run_s * 1000)

    return replace(running, running=tuple(replace(one, predicted_ms=end_ms(one)) for one in running.running))


def _predicted_s(session: Session, kinds: Sequence[_Kind], policy: Policy) -> dict[_Kind, float | None]:
    asked = list(dict.fromkeys(kinds))[:MOST_KINDS]
    if not asked:
        return {}
    tenants, called, nodes, gpus = (list(column) for column in zip(*asked, strict=True))
    most = {"newest": NEWEST_RUNS, "newest_of_name": NEWEST_OF_NAME}
    wanted = {"tenants": tenants, "names": called, "nodes": nodes, "gpus": gpus, **most}
    return {
        asked[number - 1]: predicted_s([float(run_s) for run_s in runs], policy)
        for number, runs in session.execute(_RUNS, wanted)
    }


def _kind(job: WaitingJob) -> _Kind:
    return job.tenant_id, job.name, job.nodes, job.gpus_per_node
