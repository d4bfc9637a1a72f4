"""A node's hour of samples, to the second, in any order of arrival.

Samples of one GPU and second join by the greater value of each metric, so no report replaces another: joining is
commutative, associative and idempotent, so repeated and late reports lead to the same hour (I14).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from control.telemetry.codec import (
    SECONDS_AN_HOUR,
    Block,
    Floats,
    pack_seconds,
    pack_segment,
    unpack_seconds,
    unpack_segment,
)

HOUR_MS = SECONDS_AN_HOUR * 1000


@dataclass(frozen=True, slots=True)
class NodeHour:
    """One hour. ``values`` are (GPUs × seconds × metrics); ``seconds`` of the hour grow, ``gpu_uuids`` are sorted."""

    gpu_uuids: tuple[str, ...]
    seconds: npt.NDArray[np.int64]
    values: Floats


@dataclass(frozen=True, slots=True)
class PackedHour:
    """An hour as a chunk stores it: a segment a GPU, with their ends in ``segment_ends``."""

    gpu_uuids: tuple[str, ...]
    seconds: bytes
    segment_ends: tuple[int, ...]
    content: bytes


def hour_of(at_ms: int) -> int:
    """Return the beginning of the hour that holds ``at_ms``."""
    return at_ms - at_ms % HOUR_MS


def hour_from_blocks(blocks: Sequence[tuple[int, Block]], width: int) -> NodeHour:
    """Return the hour of (time in ms, block) pairs, all of one hour."""
    gpu_uuids = tuple(sorted({uuid for _, block in blocks for uuid in block.gpu_uuids}))
    places = {uuid: place for place, uuid in enumerate(gpu_uuids)}
    of_block = [at_ms % HOUR_MS // 1000 for at_ms, _ in blocks]
    seconds = np.array(sorted(set(of_block)), dtype=np.int64)
    columns = {int(second): column for column, second in enumerate(seconds)}
    values = np.full((len(gpu_uuids), len(seconds), width), np.nan, dtype=np.float32)
    for second, (_, block) in zip(of_block, blocks, strict=True):
        rows = [places[uuid] for uuid in block.gpu_uuids]
        column = columns[second]
        np.fmax.at(values, (rows, column), block.values)
    return NodeHour(gpu_uuids, seconds, values)


def join_hours(parts: Iterable[NodeHour], width: int) -> NodeHour:
    parts = list(parts)
    gpu_uuids = tuple(sorted({uuid for part in parts for uuid in part.gpu_uuids}))
    empty = np.zeros(0, dtype=np.int64)
    seconds = np.unique(np.concatenate([empty, *(part.seconds for part in parts)]))
    values = np.full((len(gpu_uuids), len(seconds), width), np.nan, dtype=np.float32)
    places = {uuid: place for place, uuid in enumerate(gpu_uuids)}
    for part in parts:
        rows = [places[uuid] for uuid in part.gpu_uuids]
        corner = np.ix_(np.array(rows, dtype=np.int64), np.searchsorted(seconds, part.seconds))
        values[corner] = np.fmax(values[corner], part.values)
    return NodeHour(gpu_uuids, seconds, values)


def pack_hour(hour: NodeHour) -> PackedHour:
    segments = [pack_segment(values) for values in hour.values]
    ends = np.cumsum([len(segment) for segment in segments], dtype=np.int64).tolist()
    return PackedHour(hour.gpu_uuids, pack_seconds(hour.seconds), tuple(ends), b"".join(segments))


def unpack_hour(packed: PackedHour, schema: int, width: int) -> NodeHour:
    """Return the hour. Raises ``CodecError``."""
    seconds = unpack_seconds(packed.seconds)
    starts = (0, *packed.segment_ends[:-1])
    segments = [
        unpack_segment(packed.content[start:end], len(seconds), schema)
        for start, end in zip(starts, packed.segment_ends, strict=False)
    ]
    values = np.stack(segments) if segments else np.empty((0, len(seconds), width), dtype=np.float32)
    return NodeHour(packed.gpu_uuids, seconds, values)
