"""The newest readings of a node's GPUs as one value of its row, and which report each GPU's are of.

Packed: the number of GPUs and of metrics, two bytes each; metric by metric a float64 a GPU, NaN for None, big-endian as
``float8send`` writes it, so that SQL can make and find one; a byte a GPU that is 1 where the driver no longer answers
for it; and the GPUs' names, which stay the same from report to report and so cost no log where they stand last.
"""

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import structlog
from sqlalchemy import Connection

from control.telemetry.codec import CodecError, values_of
from muster.db.pipeline.packed_arrays import TEXT_SEPARATOR
from muster.db.queries.telemetry import ReadingsRow, readings_of
from muster.domain.gpu.metrics import NUM_METRICS, Values
from muster.domain.ids import NodeId
from muster.domain.times import to_ms

_HEAD: Final = struct.Struct(">HH")
_FLOAT: Final = np.dtype(">f8")
_log = structlog.get_logger(__name__)

Floats = npt.NDArray[np.float64]


class ReportedIn(msgspec.Struct, frozen=True, array_like=True):
    """The report that a GPU's readings came with."""

    boot_id: str
    seq: int
    at_ms: int
    received_ms: int


@dataclass(frozen=True, slots=True)
class GpuReadings:
    reported_in: ReportedIn
    values: Values
    is_lost: bool


@dataclass(frozen=True, slots=True)
class Packed:
    """Stored readings. ``behind``: JSON of the GPUs that the node's newest report does not contain, or ``null``."""

    content: bytes
    behind: str = "null"


def pack_readings(gpu_uuids: Sequence[str], values: "npt.NDArray[np.floating[Any]]", lost: Sequence[bool]) -> bytes:
    """Return packed readings. ``values``: a row a GPU and a column a metric, NaN for None."""
    metric_by_metric = values.astype(_FLOAT, copy=False).T.tobytes()
    return _HEAD.pack(*values.shape) + metric_by_metric + bytes(lost) + TEXT_SEPARATOR.join(gpu_uuids).encode()


def unpack_readings(content: bytes) -> tuple[tuple[str, ...], Floats, tuple[bool, ...]]:
    """Return GPUs, their values (GPUs × metrics), and which are lost. Raises ``CodecError``."""
    if not content:
        return (), np.empty((0, NUM_METRICS)), ()
    if len(content) < _HEAD.size:
        raise CodecError("readings without their head")
    num_gpus, width = _HEAD.unpack_from(content)
    lost_at = _HEAD.size + num_gpus * width * _FLOAT.itemsize
    names = content[lost_at + num_gpus :].decode().split(TEXT_SEPARATOR) if num_gpus else []
    if len(names) != num_gpus:
        raise CodecError(f"readings of {len(content)} bytes do not hold {num_gpus} GPUs")
    matrix = np.frombuffer(content, _FLOAT, num_gpus * width, _HEAD.size).reshape(width, num_gpus)
    return tuple(names), matrix.T.astype(np.float64), tuple(map(bool, content[lost_at : lost_at + num_gpus]))


def known_in(row: ReadingsRow) -> dict[str, GpuReadings]:
    """Return the readings by GPU. Unreadable ones are dropped, and logged: each GPU's next readings replace them.

    A release with fewer metrics may have stored them: the others are None.
    """
    if row.boot_id is None or row.at is None or row.received_at is None:
        return {}
    newest = ReportedIn(row.boot_id, row.seq, to_ms(row.at), to_ms(row.received_at))
    try:
        names, matrix, lost = unpack_readings(row.content)
        behind = msgspec.convert(row.behind, dict[str, ReportedIn]) if row.behind else {}
    except (CodecError, msgspec.ValidationError) as error:
        _log.error("gpu_readings_unreadable", node_id=row.node_id, fault=str(error))
        return {}
    later = (None,) * (NUM_METRICS - matrix.shape[1])
    return {
        name: GpuReadings(behind.get(name, newest), values_of(values) + later, is_lost)
        for name, values, is_lost in zip(names, matrix, lost, strict=True)
    }


def newest_readings(connection: Connection, node_ids: Iterable[NodeId], *, since: datetime) -> dict[str, GpuReadings]:
    """Return the newest readings of these nodes by GPU, by one statement. Reports before ``since`` are left out."""
    since_ms = to_ms(since)
    known = [known_in(row) for row in readings_of(connection, sorted(node_ids)).values()]
    return {
        uuid: each for of_node in known for uuid, each in of_node.items() if each.reported_in.received_ms >= since_ms
    }


def pack_known(known: Mapping[str, GpuReadings], own: Collection[str], newest: ReportedIn) -> Packed:
    """Return the known readings of the node's ``own`` GPUs, packed, after the report ``newest``."""
    kept = {uuid: known[uuid] for uuid in sorted(known) if uuid in own}
    if not kept:
        return Packed(b"")
    width = max(len(each.values) for each in kept.values())
    matrix = np.full((len(kept), width), np.nan)
    for row, each in zip(matrix, kept.values(), strict=True):
        row[: len(each.values)] = np.array(each.values, np.float64)
    behind = {uuid: each.reported_in for uuid, each in kept.items() if each.reported_in != newest}
    content = pack_readings(list(kept), matrix, [each.is_lost for each in kept.values()])
    return Packed(content, msgspec.json.encode(behind).decode() if behind else "null")
