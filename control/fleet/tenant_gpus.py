"""A GPU as a tenant sees it: only while or after one of its jobs held it, and no more than concerns that job."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from control.core.paging import Part
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from control.fleet.gpu_jobs import PastHolder, past_holders
from control.fleet.types import GpuRecord
from muster.db.models import Gpu, Node
from muster.db.queries.effective_standing import effective_standing
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing

ATTEMPTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class TenantGpu:
    """One GPU. ``assignments``: the tenant's attempts that have or had it, the newest first."""

    gpu: GpuRecord
    effective_standing: Standing
    node_name: str
    assignments: Sequence[PastHolder]


def tenant_gpu(unit: UnitOfWork, uuid: GpuUuid) -> TenantGpu:
    """Return the GPU. Raises ``NotFoundError``: no such GPU, or none of the principal's jobs was ever on it."""
    stays = past_holders(unit, uuid, Part(ATTEMPTS_SHOWN))
    columns = Gpu, effective_standing(unit.now), Node.name
    query = select(*columns).join(Node, Node.id == Gpu.node_id).where(Gpu.uuid == uuid)
    found = unit.session.execute(query).one_or_none()
    if found is None or not stays:
        raise NotFoundError("there is no such GPU")
    gpu, standing, node_name = found
    return TenantGpu(record_of(gpu, GpuRecord), standing, node_name, stays)
