"""The queue as people read it: pending jobs in the order in which the scheduler tries them, and why each waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select

from control.attempts.types import JobRecord
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see, visible_rows
from control.placement.scheduling import queue_in_order
from control.placement.wait_records import binding_of
from muster.db.models import Job, Tenant
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.principals import Permission
from muster.domain.states import JobState

READ: Final = declare_action("queue.read")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One pending job. ``place``: in the whole queue, from 1 on. ``num_gpus``: at least.

    ``binding``: None before a cycle.
    """

    place: int
    job: JobRecord
    tenant_name: str
    num_gpus: int
    binding: WaitReason | None


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue. ``num_waiting``: QUEUED jobs of all tenants; ``num_own``: the QUEUED jobs that the reader may know."""

    jobs: Sequence[QueuedJob]
    num_waiting: int
    num_own: int


def queue_of(unit: UnitOfWork, *, limit: int) -> Queue:
    """Return the first ``limit`` that the reader may know, each with its place among all."""
    unit.principal.require(Permission.JOB_READ)
    ordered = queue_in_order(unit.session, unit.now)
    seen = [(place, waiting) for place, waiting in enumerate(ordered, 1) if may_see(unit.principal, waiting.tenant_id)]
    shown = {waiting.job_id: (place, waiting.fewest_gpus) for place, waiting in seen[:limit]}
    query = select(Job, Tenant.name).join(Tenant, Tenant.id == Job.tenant_id).where(Job.id.in_(shown))
    found = [
        QueuedJob(
            shown[job.id][0],
            record_of(job, JobRecord),
            tenant_name,
            shown[job.id][1],
            binding_of(job.state, job.wait_verdict),
        )
        for job, tenant_name in unit.session.execute(query)
        if job.state is JobState.QUEUED
    ]
    waiting = select(func.count()).select_from(Job).where(Job.state == JobState.QUEUED)
    num_own = waiting.where(visible_rows(unit.principal, Job.tenant_id))
    return Queue(
        sorted(found, key=lambda one: one.place),
        unit.session.scalar(waiting) or 0,
        unit.session.scalar(num_own) or 0,
    )
