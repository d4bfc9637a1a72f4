"""The attempts that have or had a GPU, in one listing: to find out whether it has harmed a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import select

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import visible_rows
from muster.db.models import Allocation, AllocationGpu, Attempt, Gpu, Job
from muster.db.queries.assignments import IS_OR_WAS_ASSIGNED
from muster.domain.errors import NotFoundError
from muster.domain.ids import AllocationId, AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import AllocationState, AttemptState, Cause, StopReason

READ: Final = declare_action("gpu.jobs.read")
SORTS: Final = by_time(SortKey(AllocationGpu.allocation_id, attrgetter("allocation_id")))


@dataclass(frozen=True, slots=True)
class PastHolder:
    """One attempt with its part of the allocation that had the GPU. ``state``: of that part."""

    job_id: JobId
    job_name: str
    tenant_id: TenantId
    tier: str
    attempt_id: AttemptId
    attempt_number: int
    attempt_state: AttemptState
    cause: Cause | None
    proof: str | None
    stop_reason: StopReason | None
    placed_at: datetime
    running_at: datetime | None
    ended_at: datetime | None
    allocation_id: AllocationId
    node_id: NodeId
    node_rank: int
    local_index: int
    state: AllocationState


_GPU_JOB_COLUMNS: Final[tuple[Any, ...]] = (
    *(Job.id, Job.name, Job.tenant_id, Job.tier),
    *(Attempt.id, Attempt.number, Attempt.state, Attempt.cause, Attempt.proof, Attempt.stop_reason),
    *(Attempt.placed_at, Attempt.running_at, Attempt.ended_at),
    *(AllocationGpu.allocation_id, AllocationGpu.node_id, AllocationGpu.node_rank, AllocationGpu.local_index),
    AllocationGpu.state,
)


def holders_of(unit: UnitOfWork, uuid: GpuUuid, part: Part, span: Span = ALWAYS) -> Sequence[PastHolder]:
    """Return the attempts as ``past_holders`` does.

    Raises:
        NotFoundError: there is no such GPU.
    """
    unit.principal.require(Permission.GPU_READ)
    if unit.session.get(Gpu, uuid) is None:
        raise NotFoundError("there is no such GPU")
    return past_holders(unit, uuid, part, span=span)


def past_holders(unit: UnitOfWork, uuid: GpuUuid, part: Part, *, span: Span = ALWAYS) -> Sequence[PastHolder]:
    """Return the attempts that have or had the GPU, the newest first unless ``part`` says otherwise.

    A tenant reads its own. ``span``: in which they were placed.
    """
    unit.principal.require(Permission.JOB_READ)
    query = (
        select(*_GPU_JOB_COLUMNS)
        .select_from(AllocationGpu)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .join(Job, Job.id == Allocation.job_id)
        .where(AllocationGpu.gpu_uuid == uuid, IS_OR_WAS_ASSIGNED, visible_rows(unit.principal, Job.tenant_id))
        .where(*span.conditions(Attempt.placed_at))
    )
    return [PastHolder(*row) for row in unit.session.execute(part.of(query, SORTS[TimeOrder.NEWEST]))]
