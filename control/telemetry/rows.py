"""Rows of a group commit, from fresh reports. Numbers are packed once, for the whole group."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from control.evidence.unknown_kinds import FAULT, is_known
from control.telemetry.boots import BootBook
from control.telemetry.codec import Port, matrix_of, pack_block
from control.telemetry.node_readings import GpuReadings, Packed, ReportedIn, pack_readings
from control.telemetry.reports import FreshReport, IncomingReport
from muster.db.queries.telemetry import BlockRow, NodeRow
from muster.domain.evidence.findings import EventKind, GpuSignal, Source
from muster.domain.evidence.state_readings import with_driver
from muster.domain.ids import GpuUuid
from muster.domain.times import to_ms
from muster.wire.telemetry import BYTES_PER_GBIT, EventReport, Report

Matrix = npt.NDArray[np.float64]
_encode: Final = msgspec.json.Encoder().encode


def pack_blocks(fresh: Sequence[FreshReport]) -> tuple[list[BlockRow], list[Matrix]]:
    """Return a block a report, and the readings of its GPUs in full precision."""
    whole = matrix_of(gpu.values for one in fresh for gpu in one.gpus)
    blocks, matrices, start, narrow = [], [], 0, whole.astype("<f4")
    for one in fresh:
        end = start + len(one.gpus)
        report = one.incoming.report
        content = pack_block(one.gpu_uuids, narrow[start:end], _ports_of(report))
        blocks.append(
            BlockRow(one.incoming.node_id, report.boot_id, report.seq, one.incoming.placed_ms, report.schema, content)
        )
        matrices.append(whole[start:end])
        start = end
    return blocks, matrices


def _ports_of(report: Report) -> list[Port]:
    """Return the ports of a report. An agent of an earlier release reports none."""
    if report.node is None or report.node.port_throughput is UNSET:
        return []
    return [
        (
            port.port,
            port.sent_bytes_per_s,
            port.received_bytes_per_s,
            math.nan if port.link_gbps is None else port.link_gbps * BYTES_PER_GBIT,
        )
        for port in report.node.port_throughput
    ]


class Remembered(Protocol):
    """What the judgement of samples keeps of a node, as JSON."""

    def memory_of(self, node_id: str) -> str: ...
    def freshness_of(self, node_id: str) -> str: ...


def node_row(fresh: FreshReport, book: BootBook, remembered: Remembered, gpus: Packed) -> NodeRow:
    incoming = fresh.incoming
    report = incoming.report
    return NodeRow(
        node_id=incoming.node_id,
        boot_id=report.boot_id,
        boot_order=book.order,
        seq=report.seq,
        newest_ms=book.newest_ms,
        past=_encode(book.past).decode(),
        at_ms=report.at_ms,
        skew_ms=incoming.received_ms - report.at_ms,
        readings=_encode(report.node).decode(),
        memory=remembered.memory_of(incoming.node_id),
        freshness=remembered.freshness_of(incoming.node_id),
        behind=gpus.behind,
        content=gpus.content,
    )


def covers_all(fresh: FreshReport, own: frozenset[str]) -> bool:
    """Return whether a report holds each of the node's GPUs once."""
    return len(fresh.gpu_uuids) == len(own) and own.issubset(fresh.gpu_uuids)


def packed_as_reported(fresh: FreshReport, matrix: Matrix) -> Packed:
    """Return the packed readings of the GPUs of one report alone."""
    return Packed(pack_readings(fresh.gpu_uuids, matrix, [gpu.is_lost for gpu in fresh.gpus]))


def reported_in(fresh: FreshReport, now: datetime) -> ReportedIn:
    report = fresh.incoming.report
    return ReportedIn(report.boot_id, report.seq, report.at_ms, to_ms(now))


def reported_by(fresh: FreshReport, now: datetime) -> dict[str, GpuReadings]:
    source = reported_in(fresh, now)
    return {gpu.uuid: GpuReadings(source, tuple(gpu.values), gpu.is_lost) for gpu in fresh.gpus}


def signal_rows(
    one: IncomingReport, now: datetime, is_alarming: Callable[[GpuSignal], bool]
) -> Iterator[dict[str, Any]]:
    """Yield the events' rows. Events are placed as their report is, by the same shift, and none after its receipt.

    An XID is stored with the driver's branch of its report: its text is read by that branch, whatever is loaded later.
    """
    shift_ms = one.placed_ms - one.report.at_ms
    driver = None if one.report.node is None else one.report.node.driver_version
    for event in one.report.events:
        values = with_driver(event.kind, event.values, driver)
        at_ms = max(0, min(event.at_ms + shift_ms, one.received_ms))
        yield {
            "node_id": one.node_id,
            "signal_id": event.event_id,
            "gpu_uuid": event.gpu_uuid,
            "kind": event.kind,
            "source": event.source,
            "code": event.code,
            "at_ms": at_ms,
            "received_at": now,
            "text": event.text,
            "values": _encode(values).decode(),
            "is_open": event.is_open,
            "is_alarming": is_known(event.kind) and is_alarming(_signal_of(one, event, at_ms, values)),
            "judge_fault": None if is_known(event.kind) else FAULT,
        }


def _signal_of(one: IncomingReport, event: EventReport, at_ms: int, values: Mapping[str, float]) -> GpuSignal:
    return GpuSignal(
        signal_id=event.event_id,
        kind=EventKind(event.kind),
        source=Source(event.source),
        at_ms=at_ms,
        node_id=one.node_id,
        gpu_uuid=None if event.gpu_uuid is None else GpuUuid(event.gpu_uuid),
        code=event.code,
        text=event.text,
        values=values,
    )


def gap_rows(one: IncomingReport, now: datetime) -> Iterator[dict[str, Any]]:
    for ordinal, gap in enumerate(one.report.gaps):
        yield {
            "node_id": one.node_id,
            "boot_id": one.report.boot_id,
            "report_seq": one.report.seq,
            "ordinal": ordinal,
            "received_at": now,
            **msgspec.structs.asdict(gap),
        }
