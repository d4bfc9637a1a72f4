"""The attempts that had a GPU, to find out whether it has harmed a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork, declare_action
from muster.db.models import Allocation, AllocationGpu, Attempt, Gpu, Job
from muster.db.queries.holdings import IS_OR_WAS_TAKEN
from muster.domain.errors import NotFoundError
from muster.domain.ids import AllocationId, GpuUuid
from muster.domain.principals import Permission

READ: Final = declare_action("gpu.jobs.read")


@dataclass(frozen=True, slots=True)
class PastHolder:
    """One attempt with its part of the allocation that had the GPU."""

    job: Job
    attempt: Attempt
    part: AllocationGpu

    @property
    def allocation_id(self) -> AllocationId:
        return self.part.allocation_id


def holders_of(
    unit: UnitOfWork, uuid: GpuUuid, *, before: AllocationId | None = None, limit: int
) -> Sequence[PastHolder]:
    """Return the attempts, the newest first. ``before``: the allocation at which the last page ended.

    Raises:
        NotFoundError: there is no such GPU.
    """
    unit.principal.require(Permission.GPU_READ)
    if unit.session.get(Gpu, uuid) is None:
        raise NotFoundError("there is no such GPU")
    query = (
        select(Job, Attempt, AllocationGpu)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .join(Job, Job.id == Allocation.job_id)
        .where(AllocationGpu.gpu_uuid == uuid, IS_OR_WAS_TAKEN)
        .order_by(AllocationGpu.allocation_id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(AllocationGpu.allocation_id < before)
    return [PastHolder(*row) for row in unit.session.execute(query)]
