"""From fresh reports to the rows of a group commit. Numbers are packed once, for the whole group."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from muster.db.packed_arrays import packed_floats, packed_ints
from muster.db.repositories.telemetry import BlockRow, LatestRows, NodeRow
from muster.services.telemetry.boots import BootBook
from muster.services.telemetry.codec import matrix_of, pack_block
from muster.services.telemetry.reports import FreshReport, IncomingReport

Matrix = npt.NDArray[np.float64]
_encode: Final = msgspec.json.Encoder().encode


def pack_blocks(fresh: Sequence[FreshReport]) -> tuple[list[BlockRow], Matrix]:
    """A block a report, and the readings of all their GPUs, report by report, in full precision."""
    matrix = matrix_of(gpu.values for one in fresh for gpu in one.gpus)
    blocks, start, narrow = [], 0, matrix.astype("<f4")
    for one in fresh:
        end = start + len(one.gpus)
        report = one.incoming.report
        content = pack_block(one.gpu_uuids, narrow[start:end])
        blocks.append(
            BlockRow(one.incoming.node_id, report.boot_id, report.seq, one.incoming.placed_ms, report.schema, content)
        )
        start = end
    return blocks, matrix


def node_row(fresh: FreshReport, book: BootBook, memory: str) -> NodeRow:
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
        memory=memory,
    )


def latest_rows(fresh: Sequence[FreshReport], matrix: Matrix) -> LatestRows | None:
    """The newest sample of each GPU in the group; None where no report is current.

    ``fresh`` stands in order: of two current reports of one node the later one is the newer.
    """
    newest: dict[str, int] = {}
    row = 0
    for one in fresh:
        if one.boot_order is not None:
            newest.update(zip(one.gpu_uuids, range(row, row + len(one.gpus)), strict=True))
        row += len(one.gpus)
    if not newest:
        return None
    uuids = sorted(newest)
    rows = np.array([newest[uuid] for uuid in uuids], dtype=np.int64)
    report_of_row = np.repeat(np.arange(len(fresh)), [len(one.gpus) for one in fresh])
    is_lost = np.array([gpu.is_lost for one in fresh for gpu in one.gpus], dtype=np.int64)
    width = matrix.shape[1]
    return LatestRows(
        gpu_uuids=uuids,
        report_numbers=packed_ints(report_of_row[rows]),
        value_starts=packed_ints(np.arange(len(uuids)) * width + 1),
        widths=packed_ints(np.full(len(uuids), width)),
        lost=packed_ints(is_lost[rows]),
        floats=packed_floats(matrix[rows]),
        node_ids=[one.incoming.node_id for one in fresh],
        boot_ids=[one.incoming.report.boot_id for one in fresh],
        boot_orders=packed_ints([one.boot_order or 0 for one in fresh]),
        seqs=packed_ints([one.incoming.report.seq for one in fresh]),
        at_ms=packed_ints([one.incoming.report.at_ms for one in fresh]),
        schemas=packed_ints([one.incoming.report.schema for one in fresh]),
    )


def signal_rows(one: IncomingReport, now: datetime) -> Iterator[dict[str, Any]]:
    for event in one.report.events:
        yield {
            "node_id": one.node_id,
            "signal_id": event.event_id,
            "gpu_uuid": event.gpu_uuid,
            "kind": event.kind,
            "source": event.source,
            "code": event.code,
            "at_ms": event.at_ms,
            "received_at": now,
            "text": event.text,
            "values": _encode(event.values).decode(),
            "is_open": event.is_open,
        }


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
