"""Occupants of a place that is held for a gang: the end of each, and the jobs placed there later that end before."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWork
from control.core.visibility import visible_rows
from muster.db.models import Allocation, AllocationGpu, Attempt, Job
from muster.db.queries.assignments import IS_ASSIGNED
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.principals import Permission
from muster.domain.states import AllocationState


@dataclass(frozen=True, slots=True)
class Occupant:
    """One job's GPUs on one host of the place.

    ``ends_at``: the latest end, before its grace; None: the job states no time.
    """

    node_id: NodeId
    job_id: JobId
    job_name: str
    num_gpus: int
    placed_at: datetime
    ends_at: datetime | None
    is_cleaning: bool


def occupants_of(unit: UnitOfWork, uuids: Collection[GpuUuid]) -> Sequence[Occupant]:
    """Return the occupants, the first placed one first. A tenant reads its own jobs alone."""
    unit.principal.require(Permission.JOB_READ)
    ends_at = func.coalesce(Attempt.stop_deadline_at, Attempt.wall_deadline_at)
    is_cleaning = AllocationGpu.state == AllocationState.CLEANING
    what = (AllocationGpu.node_id, Job.id, Job.name, Attempt.placed_at, ends_at, is_cleaning)
    query = (
        select(*what, func.count())
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .join(Job, Job.id == Allocation.job_id)
        .where(AllocationGpu.gpu_uuid.in_(uuids), IS_ASSIGNED, visible_rows(unit.principal, Job.tenant_id))
        .group_by(*what)
        .order_by(Attempt.placed_at, Job.id, AllocationGpu.node_id)
    )
    return [
        Occupant(node_id, job_id, name, num_gpus, placed_at, until, cleaning)
        for node_id, job_id, name, placed_at, until, cleaning, num_gpus in unit.session.execute(query)
    ]
