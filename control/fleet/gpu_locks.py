"""Locks on GPU rows, always in one order."""

from collections.abc import Sequence

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Gpu
from muster.domain.ids import GpuUuid


def lock_gpus(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> list[Gpu]:
    """Lock the GPUs and return them in id order, which every caller uses."""
    query = select(Gpu).where(Gpu.uuid.in_(uuids)).order_by(Gpu.uuid).with_for_update(key_share=True)
    return list(unit.session.scalars(query.execution_options(populate_existing=True)).all())
