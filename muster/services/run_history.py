"""How long jobs of the same tenant, name and shape took, for those that wait and say no wall time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from muster.domain.policy import Policy
from scheduler.history import predicted_s
from scheduler.model import WaitingJob

MOST_KINDS: Final = 1_000
"""Of so many kinds of jobs the past is asked for, in the order of the queue: each is a look-up or two."""
NEWEST_RUNS: Final = 20
NEWEST_OF_NAME: Final = 200
"""Among so many of a name those of the shape are looked for: a name may have been run any number of times."""

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
            SELECT id, spec, finished_at
            FROM jobs AS named
            WHERE named.tenant_id = wanted.tenant_id AND named.name = wanted.name AND named.state = 'SUCCEEDED'
            ORDER BY named.finished_at DESC
            LIMIT :newest_of_name
        ) AS jobs
        WHERE (jobs.spec->'shape'->>'nodes')::int = wanted.nodes
            AND (jobs.spec->'shape'->>'gpus_per_node')::int = wanted.gpus_per_node
        ORDER BY jobs.finished_at DESC
        LIMIT :newest
    ) AS run
    WHERE run.run_s IS NOT NULL
    GROUP BY wanted.number
    """
)


def with_predictions(session: Session, queue: Sequence[WaitingJob], policy: Policy) -> list[WaitingJob]:
    """Each with its ``predicted_s``, where it says no wall time and enough like it have ended well."""
    asked = list(dict.fromkeys(_kind(job) for job in queue if job.expected_s is None))[:MOST_KINDS]
    if not asked:
        return list(queue)
    tenants, called, nodes, gpus = (list(column) for column in zip(*asked, strict=True))
    most = {"newest": NEWEST_RUNS, "newest_of_name": NEWEST_OF_NAME}
    wanted = {"tenants": tenants, "names": called, "nodes": nodes, "gpus": gpus, **most}
    found = {
        asked[number - 1]: predicted_s([float(run_s) for run_s in runs], policy)
        for number, runs in session.execute(_RUNS, wanted)
    }
    return [job if job.expected_s is not None else replace(job, predicted_s=found.get(_kind(job))) for job in queue]


def _kind(job: WaitingJob) -> tuple[str, str, int, int]:
    return job.tenant_id, job.name, job.nodes, job.gpus_per_node
