"""A job with its attempts, and the newest jobs, each by one statement."""

import functools
from typing import Final

import msgspec

from muster.db.pipeline.records import AttemptHostRecord, AttemptRecord, JobRecord
from muster.db.queries.json_query import Question
from muster.domain.ids import GpuUuid


class HostView(msgspec.Struct, frozen=True):
    """One host's part of an attempt with the GPUs that it holds there, in the order of local ranks."""

    part: AttemptHostRecord
    node_name: str
    gpus: tuple[GpuUuid, ...]


class AttemptView(msgspec.Struct, frozen=True):
    attempt: AttemptRecord
    hosts: tuple[HostView, ...]

    @property
    def num_moments(self) -> int:
        """Return how many steps its hosts' parts have completed; the number only grows."""
        parts = (host.part for host in self.hosts)
        return sum(
            moment is not None
            for part in parts
            for moment in (part.claimed_at, part.ready_at, part.started_at, part.exited_at, part.clean_at)
        )


class JobView(msgspec.Struct, frozen=True):
    """The rows about one job. ``attempts``: the first one first, each with its hosts by rank."""

    job: JobRecord
    attempts: list[AttemptView]


JOB: Final = Question(
    """
    SELECT json_build_object('job', to_json(j), 'attempts', COALESCE((
        SELECT json_agg(json_build_object('attempt', to_json(a), 'hosts', COALESCE((
            SELECT json_agg(json_build_object(
                'part', to_json(h), 'node_name', n.name, 'gpus', COALESCE(held.gpus, '[]')
            ) ORDER BY h.node_rank)
            FROM (
                SELECT attempt_id, node_id, node_rank, state, boot_id, ring_count, claimed_at, awaits_go, ready_at,
                    is_at_fault, started_at, exited_at, clean_at, exit_record, clean_proof
                FROM attempt_hosts WHERE attempt_id = a.id
            ) AS h
            JOIN nodes AS n ON n.id = h.node_id
            LEFT JOIN (
                SELECT g.node_id, json_agg(g.gpu_uuid ORDER BY g.node_rank, g.local_index) AS gpus
                FROM allocations AS l JOIN allocation_gpus AS g ON g.allocation_id = l.id
                WHERE l.attempt_id = a.id GROUP BY g.node_id
            ) AS held ON held.node_id = h.node_id
        ), '[]')) ORDER BY a.number)
        FROM attempts AS a WHERE a.job_id = j.id
    ), '[]'))
    FROM jobs AS j WHERE j.id = %(job_id)s
    """,
    JobView,
)
"""The job ``job_id``, whosever it is."""

_FILTERS: Final = {
    "states": "j.state = ANY(%(states)s)",
    "tenant_id": "j.tenant_id = %(tenant_id)s",
    "name": "j.name = %(name)s",
    "before_at": "(j.created_at, j.id) < (%(before_at)s, %(before_id)s)",
}


@functools.cache
def newest_jobs(filters: frozenset[str]) -> Question[list[JobRecord]]:
    """Return the query for a page of ``limit`` jobs, the newest first; a tenant's key sees its own.

    ``filters``: names among ``states``, ``tenant_id``, ``name`` and ``before_at`` (with ``before_id``).
    """
    conditions = [_FILTERS[name] for name in sorted(filters)]
    of_all, of_tenant = _page(conditions), _page(["j.tenant_id = k.tenant_id", *conditions])
    return Question(f"CASE WHEN k.tenant_id IS NULL THEN ({of_all}) ELSE ({of_tenant}) END", list[JobRecord])


def _page(conditions: list[str]) -> str:
    where = " AND ".join(conditions) or "true"
    return f"""
        SELECT COALESCE(json_agg(to_json(page)), '[]') FROM (
            SELECT * FROM jobs AS j WHERE {where} ORDER BY j.created_at DESC, j.id DESC LIMIT %(limit)s
        ) AS page
    """  # noqa: S608  # words of ours; what a caller sends is bound
