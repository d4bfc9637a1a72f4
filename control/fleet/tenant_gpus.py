"""A GPU as a tenant sees it: only while or after one of its jobs held it, and no more than concerns that job."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from control.core.visibility import visible_rows
from control.fleet.types import GpuRecord
from muster.db.models import Allocation, AllocationGpu, Attempt, Gpu, Job, Node
from muster.db.queries.holdings import IS_OR_WAS_TAKEN
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid, JobId
from muster.domain.principals import Permission
from muster.domain.states import AttemptState, Cause

ATTEMPTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Stay:
    """One attempt on one GPU, from its placement until the GPU was proved clean."""

    job_id: JobId
    job_name: str
    number: int
    state: AttemptState
    cause: Cause | None
    placed_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class OwnGpu:
    gpu: GpuRecord
    node_name: str
    stays: Sequence[Stay]


def stays_on(unit: UnitOfWork, uuid: GpuUuid, *, limit: int = ATTEMPTS_SHOWN) -> Sequence[Stay]:
    """Return attempts that held the GPU, the newest first; for a tenant its own."""
    unit.principal.require(Permission.JOB_READ)
    query = (
        select(Job.id, Job.name, Attempt.number, Attempt.state, Attempt.cause, Attempt.placed_at, Attempt.ended_at)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Allocation, Allocation.attempt_id == Attempt.id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(AllocationGpu.gpu_uuid == uuid, IS_OR_WAS_TAKEN, visible_rows(unit.principal, Job.tenant_id))
        .order_by(Attempt.placed_at.desc())
        .limit(limit)
    )
    return [Stay(*row) for row in unit.session.execute(query)]


def own_gpu(unit: UnitOfWork, uuid: GpuUuid) -> OwnGpu:
    """Return the GPU. Raises ``NotFoundError``: no such GPU, or none of the principal's jobs was ever on it."""
    stays = stays_on(unit, uuid)
    gpu = unit.session.get(Gpu, uuid)
    if gpu is None or not stays:
        raise NotFoundError("there is no such GPU")
    return OwnGpu(record_of(gpu, GpuRecord), unit.session.get_one(Node, gpu.node_id).name, stays)
