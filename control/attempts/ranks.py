"""Ranks of a locked attempt: their number, hosts and GPUs. They are ours: no report of a program can name another."""

from sqlalchemy import select

from control.attempts.attempts import LoadedAttempt
from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWork
from muster.db.models import Allocation, AllocationGpu, AttemptHost
from muster.domain.ids import GpuUuid


def num_ranks(loaded: LoadedAttempt) -> int:
    return len(loaded.hosts) * ranks_per_host(loaded)


def ranks_per_host(loaded: LoadedAttempt) -> int:
    return job_request(loaded.job).shape.num_ranks_per_node


def ranks_of(loaded: LoadedAttempt, part: AttemptHost) -> range:
    """Return the ranks of one of the attempt's hosts."""
    width = ranks_per_host(loaded)
    return range(part.node_rank * width, (part.node_rank + 1) * width)


def host_of_rank(loaded: LoadedAttempt, rank: int) -> AttemptHost | None:
    """Return the host of a rank; None if the attempt has no such rank."""
    place = rank // ranks_per_host(loaded)
    return next((host for host in loaded.hosts if host.node_rank == place), None)


def gpus_by_rank(unit: UnitOfWork, loaded: LoadedAttempt) -> dict[int, GpuUuid]:
    """Return the GPU of each rank, for a job whose ranks have one GPU each; empty for any other."""
    if not job_request(loaded.job).shape.has_a_gpu_for_each_rank:
        return {}
    width = ranks_per_host(loaded)
    query = (
        select(AllocationGpu.node_rank, AllocationGpu.local_index, AllocationGpu.gpu_uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .where(Allocation.attempt_id == loaded.attempt.id)
    )
    return {node_rank * width + local: uuid for node_rank, local, uuid in unit.session.execute(query)}
