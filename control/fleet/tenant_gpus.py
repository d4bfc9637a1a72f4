"""A GPU as a tenant sees it: only while or after one of its jobs held it, and no more than concerns that job."""

from collections.abc import Sequence
from dataclasses import dataclass

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from control.fleet.gpu_jobs import PastHolder, past_holders
from control.fleet.types import GpuRecord
from muster.db.models import Gpu, Node
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid

ATTEMPTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class TenantGpu:
    """One GPU. ``assignments``: the tenant's attempts that have or had it, the newest first."""

    gpu: GpuRecord
    node_name: str
    assignments: Sequence[PastHolder]


def tenant_gpu(unit: UnitOfWork, uuid: GpuUuid) -> TenantGpu:
    """Return the GPU. Raises ``NotFoundError``: no such GPU, or none of the principal's jobs was ever on it."""
    stays = past_holders(unit, uuid, limit=ATTEMPTS_SHOWN)
    gpu = unit.session.get(Gpu, uuid)
    if gpu is None or not stays:
        raise NotFoundError("there is no such GPU")
    return TenantGpu(record_of(gpu, GpuRecord), unit.session.get_one(Node, gpu.node_id).name, stays)
