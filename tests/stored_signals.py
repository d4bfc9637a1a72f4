"""Signals of an agent, as they wait for the judge."""

from datetime import datetime
from typing import Any

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Gpu, StoredSignal
from muster.domain.ids import GpuUuid


def add_signal(  # a row's columns, by name
    unit: UnitOfWork,
    gpu: GpuUuid | None,
    *,
    kind: str = "xid",
    code: int | None = 95,
    source: str = "nvml",
    at: datetime | None = None,
    signal_id: str | None = None,
    **columns: Any,
) -> None:
    """Store a signal about this GPU, on its node; about a node alone if no GPU is given. ``at``: now, by default."""
    at = at or unit.now
    told = {"received_at": unit.now, "text": "", "values": {}, "is_open": False, **columns}
    if "node_id" not in told:
        told["node_id"] = unit.session.get_one(Gpu, gpu).node_id
    signal_id = signal_id or f"{source}-{kind}-{code}-{gpu}-{at.isoformat()}"
    unit.session.add(
        StoredSignal(signal_id=signal_id, gpu_uuid=gpu, kind=kind, source=source, code=code, at=at, **told)
    )
