"""Blocks, chunks and newest readings that release 0.1.0 stored: readable next to newer ones, and compacted as they."""

from datetime import timedelta
from typing import Any

from sqlalchemy import func, select, update

from control.telemetry.compaction import compact_once
from control.telemetry.latest import READ, latest_of
from muster.db.models import NodeLatest, TelemetryBlock, TelemetryChunk
from muster.domain.gpu.metrics import METRICS, SCHEMA
from muster.domain.times import to_time
from tests import telemetry_of_0_1_0 as earlier
from tests.control.telemetry.conftest import GPU, Stored
from tests.fleet_factory import OPERATOR
from tests.telemetry_reports import reading, report

NAMES = [metric.name for metric in METRICS]
OF_ITS_SCHEMA = dict(zip(NAMES, earlier.VALUES, strict=False))
TENSOR = "tensor_active_percent"


def hour_of(stored: Stored) -> int:
    return stored.now_ms // 3_600_000 * 3_600_000


def add(stored: Stored, *rows: Any) -> None:
    with stored.units.engine.begin() as connection:
        for table, values in rows:
            connection.execute(table.__table__.insert().values(**values))


def block(stored: Stored, at_ms: int) -> tuple[Any, dict[str, object]]:
    at = to_time(at_ms)
    where = {"node_id": stored.node_id, "boot_id": "boot-0", "seq": at_ms, "at": at, "received_at": at}
    return TelemetryBlock, {**where, "schema": 1, "content": earlier.BLOCK}


def chunk(stored: Stored, hour_ms: int) -> tuple[Any, dict[str, object]]:
    packed = {"seconds": earlier.CHUNK_SECONDS, "content": earlier.CHUNK, "segment_ends": list(earlier.CHUNK_ENDS)}
    where = {"node_id": stored.node_id, "hour": to_time(hour_ms), "schema": 1, "gpu_uuids": list(earlier.GPUS)}
    return TelemetryChunk, {**where, **packed}


def points(stored: Stored, metric: str, hour_ms: int) -> list[float | None]:
    """Return the first minute of the hour, a point each ten seconds."""
    since = to_time(hour_ms)
    return stored.points(metric, since=since, until=since + timedelta(minutes=1), step_s=10.0)


def schemas(stored: Stored, table: Any) -> list[tuple[int, int]]:
    with stored.units.read() as session:
        found = session.execute(select(table.schema, func.count()).group_by(table.schema).order_by(table.schema))
        return [(row[0], row[1]) for row in found]


def test_what_is_stored_by_either_release_is_one_history_before_and_after_compaction(stored: Stored) -> None:
    hour_ms = hour_of(stored)
    stored.clock.advance(3_600)
    add(stored, chunk(stored, hour_ms), block(stored, hour_ms + 15_000))
    sample = reading(GPU, power_w=500.0, **{TENSOR: 40.0})
    stored.take(report(32, hour_ms + 25_000, sample, is_history=True))

    def is_whole() -> bool:
        powers = [409.5, 409.5, 500.0, None, None, None]
        tensors = [None, None, 40.0, None, None, None]
        return (points(stored, "power_w", hour_ms), points(stored, TENSOR, hour_ms)) == (powers, tensors)

    assert is_whole()
    stored.clock.advance(3 * 3_600)
    while compact_once(stored.units):
        pass
    assert schemas(stored, TelemetryBlock) == []
    assert schemas(stored, TelemetryChunk) == [(1, 1), (SCHEMA, 1)]
    assert is_whole()


def test_newest_readings_of_release_0_1_0_lack_just_the_newer_metrics(stored: Stored) -> None:
    stored.take(report(16, stored.now_ms, reading(GPU, power_w=1.0)))
    with stored.units.engine.begin() as connection:
        connection.execute(update(NodeLatest).values(gpu_readings=earlier.NEWEST_READINGS))
    with stored.units.begin(OPERATOR, READ, dry_run=True, quiet=True) as unit:
        found = latest_of(unit, GPU)
    assert found.values == dict.fromkeys(NAMES) | OF_ITS_SCHEMA


def test_a_report_on_one_gpu_keeps_the_others_readings_of_release_0_1_0(stored: Stored) -> None:
    stored.take(report(16, stored.now_ms, reading(GPU, power_w=1.0)))
    with stored.units.engine.begin() as connection:
        connection.execute(update(NodeLatest).values(gpu_readings=earlier.NEWEST_READINGS))
    stored.take(report(32, stored.now_ms, reading("GPU-alpha-1", **{TENSOR: 12.5})))
    with stored.units.begin(OPERATOR, READ, dry_run=True, quiet=True) as unit:
        found, other = latest_of(unit, GPU), latest_of(unit, type(GPU)("GPU-alpha-1"))
    assert (found.values["power_w"], found.values[TENSOR]) == (409.5, None)
    assert (other.values["power_w"], other.values[TENSOR]) == (None, 12.5)
