"""Compaction: blocks become hourly chunks once their hour has settled, in one transaction so nothing is missing."""

from datetime import datetime, timedelta
from typing import Final

import structlog

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.telemetry.codec import Block, CodecError, unpack_block
from control.telemetry.hours import (
    NodeHour,
    PackedHour,
    hour_from_blocks,
    hour_of,
    join_hours,
    pack_hour,
    unpack_hour,
)
from muster.db.models import TelemetryChunk
from muster.db.queries.telemetry_history import locked_chunk, newest_receipt, note_places, oldest_blocks, take_blocks
from muster.domain.gpu.metrics import WIDTHS
from muster.domain.ids import NodeId
from muster.domain.principals import system_principal
from muster.domain.times import to_ms, to_time

COMPACT: Final = declare_action("telemetry.compact")
SETTLED_AFTER: Final = timedelta(minutes=30)
"""Time after its end for which an hour is left in blocks: late reports are cheap until then."""
QUIET_FOR: Final = timedelta(minutes=10)
"""Time without new blocks before an hour is compacted, and so the least time in which a repeated report is known."""
BATCH: Final = 200
_PRINCIPAL: Final = system_principal("telemetry")
_log = structlog.get_logger(__name__)


def compact_once(units: UnitOfWorkFactory, *, batch: int = BATCH) -> int:
    """Compact the oldest settled hour of each of at most ``batch`` nodes. Return how many were compacted."""
    now = units.clock()
    before = to_time(hour_of(to_ms(now - SETTLED_AFTER)))
    with units.read() as session:
        found = oldest_blocks(session, before, batch)
        hours = [(node_id, to_time(hour_of(to_ms(at)))) for node_id, at in found]
        wanted = [one for one in hours if _is_quiet(newest_receipt(session, *one), now)]
    for node_id, hour in wanted:
        with units.begin(_PRINCIPAL, COMPACT, quiet=True) as unit:
            _compact(unit, node_id, hour)
    return len(wanted)


def _is_quiet(received_at: datetime | None, now: datetime) -> bool:
    return received_at is not None and received_at <= now - QUIET_FOR


def _compact(unit: UnitOfWork, node_id: NodeId, hour: datetime) -> None:
    blocks: dict[int, list[tuple[int, Block]]] = {}
    for at, schema, content in take_blocks(unit.session, node_id, hour):
        try:
            blocks.setdefault(schema, []).append((to_ms(at), unpack_block(content, schema)))
        except CodecError as error:
            _log.error("telemetry_block_unreadable", node_id=node_id, at=at.isoformat(), fault=str(error))
    for schema, found in sorted(blocks.items()):
        fresh = hour_from_blocks([one for one in found if one[1].gpu_uuids or one[1].ports], WIDTHS[schema])
        if not fresh.is_empty:
            _store(unit, node_id, hour, schema, fresh)
            note_places(unit.session, node_id, fresh.gpu_uuids, hour)


def _store(unit: UnitOfWork, node_id: NodeId, hour: datetime, schema: int, fresh: NodeHour) -> None:
    chunk = locked_chunk(unit.session, node_id, hour, schema)
    if chunk is None:
        packed = pack_hour(fresh)
        unit.session.add(
            TelemetryChunk(
                node_id=node_id,
                hour=hour,
                schema=schema,
                gpu_uuids=list(packed.gpu_uuids),
                segment_ends=list(packed.segment_ends),
                seconds=packed.seconds,
                content=packed.content,
            )
        )
        return
    before = PackedHour(tuple(chunk.gpu_uuids), chunk.seconds, tuple(chunk.segment_ends), chunk.content)
    try:
        parts = [unpack_hour(before, schema, WIDTHS[schema]), fresh]
    except CodecError as error:
        _log.error("telemetry_chunk_unreadable", node_id=node_id, hour=hour.isoformat(), fault=str(error))
        parts = [fresh]
    packed = pack_hour(join_hours(parts, WIDTHS[schema]))
    chunk.gpu_uuids, chunk.segment_ends = list(packed.gpu_uuids), list(packed.segment_ends)
    chunk.seconds, chunk.content = packed.seconds, packed.content
