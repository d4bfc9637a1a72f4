"""The newest readings of a GPU."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.db.models import GpuLatest
from muster.domain.errors import NotFoundError
from muster.domain.evidence import GpuSample
from muster.domain.ids import GpuUuid
from muster.domain.metrics import METRICS
from muster.domain.principals import Permission
from muster.services.lives import to_ms
from muster.services.telemetry.codec import values_of
from muster.services.unit_of_work import UnitOfWork, declare_action

READ: Final = declare_action("telemetry.read")


@dataclass(frozen=True, slots=True)
class Latest:
    """``values``: metric → reading, None where there is none."""

    row: GpuLatest
    values: dict[str, float | None]


def latest_of(unit: UnitOfWork, uuid: GpuUuid) -> Latest:
    """Raises ``NotFoundError``: no such GPU, or nothing was heard of it yet."""
    unit.principal.require(Permission.GPU_READ)
    row = unit.session.get(GpuLatest, uuid)
    if row is None:
        raise NotFoundError("no such GPU, or its host's agent has not reported it yet")
    names = (metric.name for metric in METRICS)
    return Latest(row, dict(zip(names, values_of(np.array(row.values)), strict=False)))


def latest_samples(session: Session) -> dict[GpuUuid, GpuSample]:
    """Every GPU's newest sample: for those who hold the fleet in memory, once, at their start."""
    rows = session.execute(select(GpuLatest.gpu_uuid, GpuLatest.at, GpuLatest.values, GpuLatest.is_lost))
    return {
        uuid: GpuSample(uuid, to_ms(at), values_of(np.array(values)), is_lost) for uuid, at, values, is_lost in rows
    }
