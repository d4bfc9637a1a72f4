"""A node's hour of samples, to the second, in any order of arrival.

Samples of one GPU and second join by the greater value of each metric, so no report replaces another: joining is
commutative, associative and idempotent, so repeated and late reports lead to the same hour (I14).
The host chooses the names of its ports, so of more than ``MAX_PORTS`` the first by name are kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from control.telemetry.codec import (
    PORT_WIDTH,
    SECONDS_AN_HOUR,
    Block,
    Floats,
    no_ports,
    pack_ports,
    pack_seconds,
    pack_segment,
    unpack_ports,
    unpack_seconds,
    unpack_segment,
)
from muster.wire.telemetry import MAX_PORTS

HOUR_MS = SECONDS_AN_HOUR * 1000


@dataclass(frozen=True, slots=True)
class NodeHour:
    """One hour. ``values`` are (GPUs × seconds × metrics); ``seconds`` of the hour grow, ``gpu_uuids`` are sorted.

    ``port_values`` are (ports × seconds × values), by the same seconds and in the order of ``ports``, which are sorted.
    """

    seconds: npt.NDArray[np.int64]
    gpu_uuids: tuple[str, ...]
    values: Floats
    ports: tuple[str, ...]
    port_values: Floats

    @property
    def is_empty(self) -> bool:
        return not self.gpu_uuids and not self.ports


@dataclass(frozen=True, slots=True)
class PackedHour:
    """An hour as a chunk stores it: a segment a GPU, then one of all ports, with their ends in ``segment_ends``."""

    gpu_uuids: tuple[str, ...]
    seconds: bytes
    segment_ends: tuple[int, ...]
    content: bytes


def hour_of(at_ms: int) -> int:
    """Return the beginning of the hour that holds ``at_ms``."""
    return at_ms - at_ms % HOUR_MS


def hour_from_blocks(blocks: Sequence[tuple[int, Block]], width: int) -> NodeHour:
    """Return the hour of (time in ms, block) pairs, all of one hour."""
    of_block = [at_ms % HOUR_MS // 1000 for at_ms, _ in blocks]
    seconds = np.array(sorted(set(of_block)), dtype=np.int64)
    columns = {int(second): column for column, second in enumerate(seconds)}
    places = [columns[second] for second in of_block]
    gpus = [(place, block.gpu_uuids, block.values) for place, (_, block) in zip(places, blocks, strict=True)]
    ports = [(place, block.ports, block.port_values) for place, (_, block) in zip(places, blocks, strict=True)]
    return NodeHour(
        seconds, *_placed(gpus, len(seconds), width), *_placed(ports, len(seconds), PORT_WIDTH, most=MAX_PORTS)
    )


def _placed(
    rows: Sequence[tuple[int, tuple[str, ...], Floats]], num_times: int, width: int, most: int | None = None
) -> tuple[tuple[str, ...], Floats]:
    """Return sorted names, and the values of (column, names, a row each). ``most``: names beyond it are left out."""
    places, values = _empty((names for _, names, _ in rows), num_times, width, most)
    for column, names, own in rows:
        kept = [row for row, name in enumerate(names) if name in places]
        np.fmax.at(values, ([places[names[row]] for row in kept], column), own[kept])
    return tuple(places), values


def join_hours(parts: Iterable[NodeHour], width: int) -> NodeHour:
    parts = list(parts)
    empty = np.zeros(0, dtype=np.int64)
    seconds = np.unique(np.concatenate([empty, *(part.seconds for part in parts)]))
    columns = [np.searchsorted(seconds, part.seconds) for part in parts]
    gpus = [(at, part.gpu_uuids, part.values) for at, part in zip(columns, parts, strict=True)]
    ports = [(at, part.ports, part.port_values) for at, part in zip(columns, parts, strict=True)]
    return NodeHour(
        seconds, *_joined(gpus, len(seconds), width), *_joined(ports, len(seconds), PORT_WIDTH, most=MAX_PORTS)
    )


def _joined(
    parts: Sequence[tuple[npt.NDArray[np.intp], tuple[str, ...], Floats]],
    num_times: int,
    width: int,
    most: int | None = None,
) -> tuple[tuple[str, ...], Floats]:
    """Return sorted names, and the joined values of (columns, names, values). ``most``: as of ``_placed``."""
    places, values = _empty((names for _, names, _ in parts), num_times, width, most)
    for columns, names, own in parts:
        kept = [row for row, name in enumerate(names) if name in places]
        corner = np.ix_(np.array([places[names[row]] for row in kept], dtype=np.int64), columns)
        values[corner] = np.fmax(values[corner], own[kept])
    return tuple(places), values


def _empty(
    several: Iterable[Sequence[str]], num_times: int, width: int, most: int | None
) -> tuple[dict[str, int], Floats]:
    """Return the place of each name, in order, and values of none yet. The first ``most`` names are kept.

    They are the same names in whatever order hours are joined.
    """
    found = sorted({name for names in several for name in names})[:most]
    values = np.full((len(found), num_times, width), np.nan, dtype=np.float32)
    return {name: place for place, name in enumerate(found)}, values


def pack_hour(hour: NodeHour) -> PackedHour:
    segments = [pack_segment(values) for values in hour.values]
    if hour.ports:
        segments.append(pack_ports(hour.ports, hour.port_values))
    ends = np.cumsum([len(segment) for segment in segments], dtype=np.int64).tolist()
    return PackedHour(hour.gpu_uuids, pack_seconds(hour.seconds), tuple(ends), b"".join(segments))


def unpack_hour(packed: PackedHour, schema: int, width: int) -> NodeHour:
    """Return the hour. Raises ``CodecError``."""
    seconds = unpack_seconds(packed.seconds)
    starts = (0, *packed.segment_ends[:-1])
    contents = [packed.content[start:end] for start, end in zip(starts, packed.segment_ends, strict=False)]
    num_gpus = len(packed.gpu_uuids)
    segments = [unpack_segment(content, len(seconds), schema) for content in contents[:num_gpus]]
    values = np.stack(segments) if segments else np.empty((0, len(seconds), width), dtype=np.float32)
    if len(contents) == num_gpus:
        return NodeHour(seconds, packed.gpu_uuids, values, (), no_ports(len(seconds)))
    return NodeHour(seconds, packed.gpu_uuids, values, *unpack_ports(contents[num_gpus], len(seconds)))
