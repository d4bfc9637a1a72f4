"""Figures from samples of GPUs and ports: an hour's telemetry is read in batches of hosts, then stored at once.

Reading takes long, so it holds no lock: the process claims the hour for some minutes first. If it dies, another
process claims the hour after that.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from sqlalchemy import func, or_, select, text, update
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from control.ledger.figure_counts import ASSIGNED
from control.ledger.figure_hours import discover, drop_facts, due_hours, note_counted, store_facts
from control.ledger.figure_rows import Group, Tally, rows_of
from control.ledger.sample_figures import WIDTH, Use, Uses, add_host, metrics_read
from control.telemetry.codec import CodecError, unpack_block
from control.telemetry.hours import NodeHour, PackedHour, hour_from_blocks, join_hours, unpack_hour
from ledger.figures.definitions import Source
from ledger.figures.hours import CLOSES_AFTER, GPUS_COUNTED_AT, HOUR
from muster.db.models import FigureHour, Node, TelemetryBlock, TelemetryChunk
from muster.domain.gpu.metrics import WIDTHS
from muster.domain.ids import NodeId, TenantId
from muster.domain.principals import system_principal
from muster.domain.residency import SITE_LABEL
from muster.domain.times import to_ms

CLAIM: Final = declare_action("figures.claim")
COUNT: Final = declare_action("figures.count_gpus")
CLAIMED_FOR: Final = timedelta(minutes=15)
HOSTS_READ: Final = 200
_PRINCIPAL: Final = system_principal("figures")
_TURN: Final = text("SELECT pg_advisory_xact_lock(hashtext('muster figures'))")
_log = structlog.get_logger(__name__)


def count_gpus_once(units: UnitOfWorkFactory) -> bool:
    """Count the newest hour that is due. Return whether there was one."""
    discover(units, Source.GPUS, _oldest_sample)
    hour = next(iter(due_hours(units, Source.GPUS, GPUS_COUNTED_AT)), None)
    if hour is None:
        return False
    claimed_until = _claim(units, hour)
    return claimed_until is not None and _store(units, hour, claimed_until, read_hour(units, hour))


def _claim(units: UnitOfWorkFactory, hour: datetime) -> datetime | None:
    with units.begin(_PRINCIPAL, CLAIM, quiet=True) as unit:
        until = unit.now + CLAIMED_FOR
        claim = update(FigureHour).where(
            FigureHour.source == Source.GPUS,
            FigureHour.hour == hour,
            FigureHour.closed_at.is_(None),
            or_(FigureHour.claimed_until.is_(None), FigureHour.claimed_until <= unit.now),
        )
        claimed = unit.session.execute(claim.values(claimed_until=until).returning(FigureHour.hour)).first()
    return None if claimed is None else until


def _store(units: UnitOfWorkFactory, hour: datetime, claimed_until: datetime, tally: Tally) -> bool:
    """Store what was read, unless another process has claimed the hour since."""
    with units.begin(_PRINCIPAL, COUNT, quiet=True) as unit:
        unit.session.execute(_TURN)
        own = select(FigureHour.claimed_until).where(FigureHour.source == Source.GPUS, FigureHour.hour == hour)
        if unit.session.scalars(own.with_for_update()).one() != claimed_until:
            return False
        drop_facts(unit, Source.GPUS, hour)
        store_facts(unit, hour, rows_of(tally))
        note_counted(unit, Source.GPUS, hour)
    return True


def read_hour(units: UnitOfWorkFactory, hour: datetime) -> Tally:
    """Return the sums of one hour. Samples that cannot be read are left out, and logged."""
    with units.read() as session:
        uses = _uses_in(session, hour)
        hosts = _hosts_in(session, hour)
    tally = Tally()
    for place in range(0, len(hosts), HOSTS_READ):
        batch = hosts[place : place + HOSTS_READ]
        with units.read() as session:
            parts = _parts_of(session, batch, hour)
        for node_id in batch:
            add_host(tally, node_id, join_hours(parts.get(node_id, ()), WIDTH), uses)
    return tally


def _uses_in(session: Session, hour: datetime) -> Uses:
    uses = Uses()
    labels = select(Node.id, Node.labels[SITE_LABEL].astext)
    uses.sites = {NodeId(row[0]): row[1] or "" for row in session.execute(labels)}
    for row in session.execute(ASSIGNED, {"begins": hour, "ends": hour + HOUR}):
        end = HOUR if row.ended_at is None else row.ended_at - hour
        group = Group(TenantId(row.tenant_id), row.tier, row.job_class, uses.sites.get(row.node_id, ""))
        use = Use(row.attempt_id, (row.placed_at - hour).total_seconds(), end.total_seconds(), group)
        uses.add(NodeId(row.node_id), row.gpu_uuid, use)
    return uses


def _hosts_in(session: Session, hour: datetime) -> list[NodeId]:
    """Return the hosts with samples of the hour."""
    chunks = select(TelemetryChunk.node_id).where(TelemetryChunk.hour == hour)
    block = (TelemetryBlock.node_id == Node.id) & (TelemetryBlock.at >= hour) & (TelemetryBlock.at < hour + HOUR)
    blocks = select(Node.id).where(select(TelemetryBlock.seq).where(block).exists())
    return sorted({*session.scalars(chunks), *session.scalars(blocks)})


def _parts_of(session: Session, node_ids: Sequence[NodeId], hour: datetime) -> Mapping[NodeId, list[NodeHour]]:
    parts: dict[NodeId, list[NodeHour]] = {}
    for node_id, part in (*_chunks(session, node_ids, hour), *_blocks(session, node_ids, hour)):
        parts.setdefault(node_id, []).append(part)
    return parts


def _chunks(session: Session, node_ids: Sequence[NodeId], hour: datetime) -> Iterator[tuple[NodeId, NodeHour]]:
    rows = select(TelemetryChunk).where(TelemetryChunk.node_id.in_(node_ids), TelemetryChunk.hour == hour)
    for row in session.scalars(rows):
        packed = PackedHour(tuple(row.gpu_uuids), row.seconds, tuple(row.segment_ends), row.content)
        try:
            yield row.node_id, metrics_read(unpack_hour(packed, row.schema, WIDTHS.get(row.schema, 0)))
        except CodecError as error:
            _log.error("telemetry_chunk_unreadable", node_id=row.node_id, hour=hour.isoformat(), fault=str(error))


def _blocks(session: Session, node_ids: Sequence[NodeId], hour: datetime) -> Iterator[tuple[NodeId, NodeHour]]:
    columns = (TelemetryBlock.node_id, TelemetryBlock.at, TelemetryBlock.schema, TelemetryBlock.content)
    is_within = (TelemetryBlock.at >= hour) & (TelemetryBlock.at < hour + HOUR)
    found: dict[tuple[NodeId, int], list[Any]] = {}
    for node_id, at, schema, content in session.execute(
        select(*columns).where(TelemetryBlock.node_id.in_(node_ids), is_within)
    ):
        try:
            block = unpack_block(content, schema)
        except CodecError as error:
            _log.error("telemetry_block_unreadable", node_id=node_id, at=at.isoformat(), fault=str(error))
            continue
        if block.gpu_uuids or block.ports:
            found.setdefault((node_id, schema), []).append((to_ms(at), block))
    for (node_id, schema), blocks in found.items():
        yield node_id, metrics_read(hour_from_blocks(blocks, WIDTHS[schema]))


def _oldest_sample(units: UnitOfWorkFactory) -> datetime:
    with units.read() as session:
        oldest = session.scalar(select(func.min(TelemetryChunk.hour)))
    return oldest or units.clock() - CLOSES_AFTER
