"""Reports of the factory's hosts, as their agents would send them."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from control.telemetry.node_readings import GpuReadings, known_in
from muster.db.models import NodeLatest
from muster.db.queries.telemetry import readings_of
from muster.domain.gpu.metrics import INDEX, NUM_METRICS, SCHEMA
from muster.wire.telemetry import TELEMETRY_PROTOCOL, EventReport, GpuReport, Report


def reading(uuid: str, **values: float | None) -> GpuReport:
    """A sample with these metrics, and none of the others."""
    row: list[float | None] = [None] * NUM_METRICS
    for name, value in values.items():
        row[INDEX[name]] = value
    return GpuReport(uuid=uuid, values=row)


def report(
    seq: int,
    at_ms: int,
    *gpus: GpuReport,
    boot_id: str = "boot-1",
    is_history: bool = False,
    **more: Any,
) -> Report:
    return Report(
        protocol=TELEMETRY_PROTOCOL,
        boot_id=boot_id,
        seq=seq,
        at_ms=at_ms,
        schema=SCHEMA,
        gpus=gpus,
        is_history=is_history,
        **more,
    )


def xid(event_id: str, at_ms: int, uuid: str = "GPU-alpha-0", *, is_open: bool = False) -> EventReport:
    return EventReport(
        event_id=event_id,
        kind="xid",
        source="nvml",
        at_ms=at_ms,
        gpu_uuid=uuid,
        code=94,
        text="contained",
        is_open=is_open,
    )


def newest_readings(session: Session) -> dict[str, GpuReadings]:
    """By GPU, of the whole fleet."""
    node_ids = session.scalars(select(NodeLatest.node_id)).all()
    rows = readings_of(session.connection(), node_ids).values()
    return {uuid: each for row in rows for uuid, each in known_in(row).items()}


def document(found: Report, **changes: Any) -> dict[str, Any]:
    """As JSON, to be bent."""
    built: Mapping[str, Any] = msgspec.to_builtins(found)
    return {**built, **changes}
