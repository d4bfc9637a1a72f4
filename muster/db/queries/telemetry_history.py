"""Blocks and chunks: finding the hours to compact, exchanging the one for the other, reading one GPU out of both."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Row, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from muster.db.models import NodeLatest, TelemetryBlock, TelemetryChunk, TelemetryGap, TelemetryPlace
from muster.domain.ids import GpuUuid, NodeId

HOUR: Final = timedelta(hours=1)
_SEGMENTS: Final = text(
    """
    SELECT wanted.i - 1, substring(chunk.content FROM wanted.start + 1 FOR wanted.length)
    FROM unnest(CAST(:node_ids AS text[]), CAST(:hours AS timestamptz[]), CAST(:schemas AS int[]),
            CAST(:starts AS int[]), CAST(:lengths AS int[]))
        WITH ORDINALITY AS wanted (node_id, hour, schema, start, length, i)
        JOIN telemetry_chunks AS chunk USING (node_id, hour, schema)
    """
)


def oldest_blocks(session: Session, before: datetime, limit: int) -> list[tuple[NodeId, datetime]]:
    """Nodes with a block before that time, each with its oldest. One look into the index a node."""
    oldest = (
        select(func.min(TelemetryBlock.at).label("at"))
        .where(TelemetryBlock.node_id == NodeLatest.node_id)
        .lateral("oldest")
    )
    query = select(NodeLatest.node_id, oldest.c.at).where(oldest.c.at < before).limit(limit)
    return [(row[0], row[1]) for row in session.execute(query)]


def newest_receipt(session: Session, node_id: NodeId, hour: datetime) -> datetime | None:
    return session.scalar(select(func.max(TelemetryBlock.received_at)).where(*_within(node_id, hour)))


def take_blocks(session: Session, node_id: NodeId, hour: datetime) -> Sequence[Row[datetime, int, bytes]]:
    """Delete the blocks of an hour, and return (at, schema, content) of each."""
    statement = delete(TelemetryBlock).where(*_within(node_id, hour))
    statement = statement.execution_options(synchronize_session=False)
    return session.execute(statement.returning(TelemetryBlock.at, TelemetryBlock.schema, TelemetryBlock.content)).all()


def _within(node_id: NodeId, hour: datetime) -> tuple[ColumnElement[bool], ...]:
    return TelemetryBlock.node_id == node_id, TelemetryBlock.at >= hour, TelemetryBlock.at < hour + HOUR


def locked_chunk(session: Session, node_id: NodeId, hour: datetime, schema: int) -> TelemetryChunk | None:
    query = select(TelemetryChunk).where(
        TelemetryChunk.node_id == node_id, TelemetryChunk.hour == hour, TelemetryChunk.schema == schema
    )
    return session.scalars(query.with_for_update()).one_or_none()


def note_places(session: Session, node_id: NodeId, gpu_uuids: Iterable[str], hour: datetime) -> None:
    rows = [{"gpu_uuid": uuid, "node_id": node_id, "last_hour": hour} for uuid in sorted(gpu_uuids)]
    if not rows:
        return
    statement = insert(TelemetryPlace).values(rows)
    latest = func.greatest(TelemetryPlace.last_hour, statement.excluded.last_hour)
    session.execute(statement.on_conflict_do_update(index_elements=["gpu_uuid", "node_id"], set_={"last_hour": latest}))


def places_of(session: Session, uuid: GpuUuid) -> set[NodeId]:
    """Return the nodes whose chunks hold the GPU."""
    return set(session.scalars(select(TelemetryPlace.node_id).where(TelemetryPlace.gpu_uuid == uuid)))


@dataclass(frozen=True, slots=True)
class Segment:
    """One GPU's part of one chunk."""

    hour: datetime
    schema: int
    seconds: bytes
    content: bytes


def segments_of(
    session: Session, uuid: GpuUuid, node_ids: Collection[NodeId], since: datetime, until: datetime
) -> list[Segment]:
    columns = (
        TelemetryChunk.node_id,
        TelemetryChunk.hour,
        TelemetryChunk.schema,
        TelemetryChunk.gpu_uuids,
        TelemetryChunk.segment_ends,
        TelemetryChunk.seconds,
    )
    query = select(*columns).where(
        TelemetryChunk.node_id.in_(sorted(node_ids)), TelemetryChunk.hour > since - HOUR, TelemetryChunk.hour < until
    )
    chunks = [row for row in session.execute(query).all() if uuid in row.gpu_uuids]
    bounds = [_bounds(row.gpu_uuids.index(uuid), row.segment_ends) for row in chunks]
    parameters = {
        "node_ids": [row.node_id for row in chunks],
        "hours": [row.hour for row in chunks],
        "schemas": [row.schema for row in chunks],
        "starts": [start for start, _ in bounds],
        "lengths": [end - start for start, end in bounds],
    }
    found = session.execute(_SEGMENTS, parameters).all() if chunks else []
    contents: dict[int, bytes] = {row[0]: row[1] for row in found}
    return [
        Segment(row.hour, row.schema, row.seconds, contents[position])
        for position, row in enumerate(chunks)
        if position in contents
    ]


def _bounds(place: int, ends: Sequence[int]) -> tuple[int, int]:
    return (ends[place - 1] if place else 0), ends[place]


def blocks_between(
    session: Session, node_ids: Collection[NodeId], since: datetime, until: datetime
) -> Sequence[Row[datetime, int, bytes]]:
    """Return (at, schema, content) of the blocks that are not compacted yet."""
    query = select(TelemetryBlock.at, TelemetryBlock.schema, TelemetryBlock.content).where(
        TelemetryBlock.node_id.in_(sorted(node_ids)), TelemetryBlock.at >= since, TelemetryBlock.at < until
    )
    return session.execute(query).all()


def gaps_between(
    session: Session, node_ids: Collection[NodeId], since: datetime, until: datetime, limit: int
) -> Sequence[TelemetryGap]:
    query = select(TelemetryGap).where(
        TelemetryGap.node_id.in_(sorted(node_ids)), TelemetryGap.until_at >= since, TelemetryGap.from_at < until
    )
    return session.scalars(query.order_by(TelemetryGap.from_at).limit(limit)).all()
