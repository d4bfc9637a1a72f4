"""Jobs, to read: one listing and one job with its attempts, for the API and the console.

The most frequent reads of the API are one statement together with the check of the key (``newest_jobs`` and ``JOB``).
The other functions read in a unit of work. Both kinds give the same records under the same rule of visibility.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from control.attempts.mapping import submitted_job
from control.attempts.types import AttemptHostRecord, AttemptRecord, JobRecord, SubmittedJob
from control.core.json_query import JsonQuery
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from control.core.visibility import may_see
from control.policy.policies import active_policy
from muster.db.models import Job
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid, JobId, TenantId
from muster.domain.job.dropped import COUNTED_KINDS
from muster.domain.principals import Permission, Principal


class HostView(msgspec.Struct, frozen=True):
    """One host's part of an attempt with the GPUs that it holds there, in the order of local ranks."""

    part: AttemptHostRecord
    node_name: str
    gpus: tuple[GpuUuid, ...]


class AttemptView(msgspec.Struct, frozen=True):
    """One attempt. ``dropped``: by kind, what was left out beyond a limit (``muster.domain.job.dropped``)."""

    attempt: AttemptRecord
    hosts: tuple[HostView, ...]
    dropped: dict[str, int]

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

    job: SubmittedJob
    attempts: list[AttemptView]


class _Attempts(msgspec.Struct, frozen=True):
    """A job's owner and its attempts as in ``JobView``."""

    tenant_id: TenantId
    attempts: list[AttemptView]


JOB_COLUMNS: Final = """
    j.id, j.tenant_id, j.name, j.tier, j.state, j.state_reason, COALESCE(j.request, j.spec) AS request, j.submitted_by,
    j.created_at, j.updated_at, j.finished_at, j.restarts_used, j.launch_failures, j.oom_doublings, j.wanted_nodes,
    j.job_class, j.copied_from, j.wait_verdict, j.next_try_at, j.cancel_requested_at, j.number, j.version
"""  # of JobRecord
_COUNTED: Final = ", ".join(f"'{kind}'" for kind in COUNTED_KINDS)
_ATTEMPTS_OF_JOB: Final = f"""COALESCE((
        SELECT json_agg(json_build_object('attempt', to_json(a), 'dropped', COALESCE((
            SELECT json_object_agg(u.kind, u.num_dropped) FROM attempt_usage AS u
            WHERE u.attempt_id = a.id AND u.kind IN ({_COUNTED}) AND u.subject = '' AND u.num_dropped > 0
        ), '{{}}'), 'hosts', COALESCE((
            SELECT json_agg(json_build_object(
                'part', to_json(h), 'node_name', n.name, 'gpus', COALESCE(held.gpus, '[]')
            ) ORDER BY h.node_rank)
            FROM (
                SELECT attempt_id, node_id, node_rank, state, boot_id, ring_count AS num_wakeups, claimed_at, awaits_go,
                    ready_at, is_at_fault, started_at, exited_at, clean_at, exit_record, clean_proof
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
    ), '[]')
"""  # noqa: S608  # words of ours
JOB: Final = JsonQuery(
    f"""
    SELECT json_build_object('job', to_json(j), 'attempts', {_ATTEMPTS_OF_JOB})
    FROM (SELECT {JOB_COLUMNS}, j.spec FROM jobs AS j WHERE j.id = %(job_id)s) AS j
    """,  # noqa: S608  # words of ours; what a caller sends is bound
    JobView,
)
"""The job ``job_id``, whosever it is."""
_ATTEMPTS: Final = JsonQuery(
    f"""
    SELECT json_build_object('tenant_id', j.tenant_id, 'attempts', {_ATTEMPTS_OF_JOB})
    FROM jobs AS j WHERE j.id = %(job_id)s
    """,  # noqa: S608  # words of ours; what a caller sends is bound
    _Attempts,
)


def get(unit: UnitOfWork, job_id: JobId) -> JobRecord:
    """Raise ``NotFoundError`` for a missing job and for another tenant's alike."""
    return record_of(row_of(unit, job_id), JobRecord)


def submitted(unit: UnitOfWork, job_id: JobId) -> SubmittedJob:
    """Return the job with its specification. Raise ``NotFoundError`` as ``get`` does."""
    return submitted_job(unit.session, row_of(unit, job_id))


def row_of(unit: UnitOfWork, job_id: JobId) -> Job:
    """Return the row of a visible job, for use within `control`. Raise ``NotFoundError`` as ``get`` does."""
    unit.principal.require(Permission.JOB_READ)
    job = unit.session.get(Job, job_id)
    if job is None or not may_see(unit.principal, job.tenant_id):
        raise NotFoundError
    return job


def attempts_of(unit: UnitOfWork, job_id: JobId) -> list[AttemptView]:
    """Return every attempt of a visible job, the first one first, with hosts and GPUs."""
    unit.principal.require(Permission.JOB_READ)
    unit.session.flush()
    found = _ATTEMPTS.ask(unit.session, {"job_id": job_id})
    if found is None or not may_see(unit.principal, found.tenant_id):
        raise NotFoundError
    return found.attempts


def seen_by(principal: Principal, found: JobView | None) -> JobView:
    """Return ``found`` if ``principal`` may see it. Raise ``NotFoundError`` as ``get`` does."""
    if found is None or not may_see(principal, found.job.tenant_id):
        raise NotFoundError
    return found


def known_tiers(unit: UnitOfWork) -> Sequence[str]:
    """Return the tiers that the active policy defines."""
    unit.principal.require(Permission.JOB_READ)
    return sorted(active_policy(unit.session).tiers)


def known_levels(unit: UnitOfWork) -> Sequence[str]:
    """Return the levels that the active policy names, widest first."""
    unit.principal.require(Permission.JOB_READ)
    return active_policy(unit.session).placement.levels
