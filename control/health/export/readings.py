"""Stored samples and events of a node."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork
from control.telemetry.codec import values_of
from control.telemetry.history import samples_of_all
from health.detectors.gpu import gpu_lost
from muster.db.models import EvidenceRow, Gpu, Node, StoredSignal
from muster.domain.evidence.findings import EventKind
from muster.domain.gpu.metrics import SCHEMA
from muster.domain.ids import GpuUuid
from muster.domain.times import to_ms
from muster.wire.health_records import Record, Samples, Time
from muster.wire.telemetry import EventReport, GpuReport

EVENTS_A_PAGE: Final = 5_000
LATE_MS: Final = 1_000
"""An event that arrived so much later than it happened is exported as one that came after its time."""
_SECOND_MS: Final = 1_000
_EXPORTED_KINDS: Final = frozenset(EventKind)
Written = Record | dict[str, object]


@dataclass(frozen=True, slots=True)
class Contacts:
    """Records that the server received at ``at_ms``.

    Of one moment, samples come first: events may be about what they show.
    """

    at_ms: int
    rank: int
    records: tuple[Written, ...]

    def order(self) -> tuple[int, int]:
        return self.at_ms, self.rank


def events_between(unit: UnitOfWork, node: Node, begin: datetime, end: datetime) -> list[Contacts]:
    """Return the agent's events in order of arrival. One more than a page holds is returned, where there are more."""
    query = (
        select(StoredSignal)
        .where(
            StoredSignal.node_id == node.id,
            StoredSignal.received_at >= begin,
            StoredSignal.received_at < end,
            StoredSignal.kind.in_(sorted(_EXPORTED_KINDS)),
        )
        .order_by(StoredSignal.received_at, StoredSignal.at, StoredSignal.signal_id)
        .limit(EVENTS_A_PAGE + 1)
    )
    return [event_of(row) for row in unit.session.scalars(query)]


def event_of(row: StoredSignal) -> Contacts:
    heard_ms = to_ms(row.received_at)
    report = EventReport(
        event_id=row.signal_id,
        kind=row.kind,
        source=row.source,  # type: ignore[arg-type]  # a column of text, written from this type
        at_ms=to_ms(row.at),
        gpu_uuid=row.gpu_uuid,
        code=row.code,
        text=row.text,
        values=row.values,
        is_open=row.is_open,
    )
    event: dict[str, object] = {"type": "event", "node_id": row.node_id, **msgspec.to_builtins(report)}
    is_late = heard_ms - report.at_ms > LATE_MS
    return Contacts(heard_ms, 1, (Time(node_id=row.node_id, at_ms=heard_ms), event) if is_late else (event,))


def cut_before(events: Sequence[Contacts], begin: datetime) -> datetime:
    """Return the end of a page with too many events: before its last moment, or after it where it is the only one."""
    first_ms, last_ms = events[0].at_ms, events[-1].at_ms
    cut_ms = last_ms if last_ms > first_ms else last_ms + 1
    return begin + timedelta(milliseconds=cut_ms - to_ms(begin))


def samples_between(unit: UnitOfWork, node: Node, begin: datetime, end: datetime) -> list[Contacts]:
    """Return one record for each second in which any GPU has a sample."""
    uuids = list(unit.session.scalars(select(Gpu.uuid).where(Gpu.node_id == node.id).order_by(Gpu.slot_index)))
    lost = _times_lost(unit, uuids, end)
    by_second: defaultdict[int, list[GpuReport]] = defaultdict(list)
    for uuid, (moments, rows) in samples_of_all(unit, uuids, {node.id}, begin, end).items():
        for at_ms, row in zip(moments.tolist(), rows, strict=True):
            values = list(values_of(row))
            is_lost = all(value is None for value in values) and _is_within(at_ms, lost[uuid])
            by_second[at_ms].append(GpuReport(uuid=uuid, values=values, is_lost=is_lost))
    return [
        Contacts(at_ms, 0, (Samples(node_id=node.id, at_ms=at_ms, schema=SCHEMA, gpus=tuple(gpus)),))
        for at_ms, gpus in sorted(by_second.items())
    ]


def _times_lost(unit: UnitOfWork, uuids: Sequence[GpuUuid], end: datetime) -> dict[GpuUuid, list[tuple[int, int]]]:
    """Return when each GPU was lost, by its evidence: a stored sample without values does not state the reason."""
    query = select(EvidenceRow).where(
        EvidenceRow.gpu_uuid.in_(uuids), EvidenceRow.detector == gpu_lost.NAME, EvidenceRow.onset_at < end
    )
    found: defaultdict[GpuUuid, list[tuple[int, int]]] = defaultdict(list)
    for row in unit.session.scalars(query):
        if row.gpu_uuid is not None:
            found[row.gpu_uuid].append((to_ms(row.onset_at), to_ms(row.closed_at or end)))
    return found


def _is_within(at_ms: int, times: Sequence[tuple[int, int]]) -> bool:
    return any(from_ms - _SECOND_MS < at_ms < until_ms for from_ms, until_ms in times)
