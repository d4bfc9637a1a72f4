"""The newest readings of a GPU."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from control.core.unit_of_work import UnitOfWork, declare_action
from control.telemetry.node_readings import known_in
from muster.db.queries.telemetry import readings_alongside
from muster.domain.errors import NotFoundError
from muster.domain.gpu.metrics import METRICS
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import Permission
from muster.domain.times import to_time

READ: Final = declare_action("telemetry.read")


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest readings.

    ``boot_id`` and ``seq`` name the report; ``values``: metric → reading, None where there is none.
    """

    gpu_uuid: GpuUuid
    node_id: NodeId
    at: datetime
    received_at: datetime
    boot_id: str
    seq: int
    is_lost: bool
    values: dict[str, float | None]


def latest_of(unit: UnitOfWork, uuid: GpuUuid) -> Latest:
    """Return the newest readings. Raises ``NotFoundError``: no such GPU, or no report of it yet."""
    unit.principal.require(Permission.GPU_READ)
    row = readings_alongside(unit.session.connection(), uuid)
    found = None if row is None else known_in(row).get(uuid)
    if row is None or found is None:
        raise NotFoundError("no such GPU, or its host's agent has not reported it yet")
    told = found.reported_in
    names = (metric.name for metric in METRICS)
    return Latest(
        gpu_uuid=uuid,
        node_id=NodeId(row.node_id),
        at=to_time(told.at_ms),
        received_at=to_time(told.received_ms),
        boot_id=told.boot_id,
        seq=told.seq,
        is_lost=found.is_lost,
        values=dict(zip(names, found.values, strict=False)),
    )
