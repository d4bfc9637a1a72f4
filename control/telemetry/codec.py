"""Encoding of samples in blocks, chunks and exports: float32, little-endian, in the schema's order; NaN for None.

A block is one report: GPU by GPU, each with every metric; then, where there are any, the host's ports, each with the
values of ``PORT_VALUES``. A chunk's segment is one GPU's hour, metric by metric, compressed: a metric that does not
change costs almost nothing. Its last segment, where there is one more, has all ports. Counters beyond 2^24 are rounded
to 7 digits.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from muster.domain.gpu.metrics import WIDTHS, Values
from muster.wire.telemetry import MAX_PORT_NAME, MAX_PORTS

SECONDS_AN_HOUR: Final = 3_600
_HEAD: Final = struct.Struct("<HI")
_SEPARATOR: Final = b"\x1f"
_KIND: Final = np.dtype("<f4")
_SECOND: Final = np.dtype("<u2")

Floats = npt.NDArray[np.float32]


PORT_VALUES: Final = ("sent_bytes_per_s", "received_bytes_per_s", "link_bytes_per_s")
PORT_WIDTH: Final = len(PORT_VALUES)
_MOST_NAME_BYTES: Final = 4 * MAX_PORT_NAME + len(_SEPARATOR)
_MOST_PORT_BYTES: Final = _HEAD.size + MAX_PORTS * (_MOST_NAME_BYTES + PORT_WIDTH * SECONDS_AN_HOUR * _KIND.itemsize)
Port = tuple[str, float, float, float]
"""Name, then the values of ``PORT_VALUES``; the link's speed is NaN where it is unknown."""


def no_ports(*num_times: int) -> Floats:
    """Return the values of no port, (ports × times × values), or without times in between."""
    return np.empty((0, *num_times, PORT_WIDTH), dtype=np.float32)


class CodecError(ValueError):
    """Bytes that this codec did not write."""


@dataclass(frozen=True, slots=True)
class Block:
    """One report's readings: ``values`` has a row a GPU and a column a metric, ``port_values`` a row a port."""

    gpu_uuids: tuple[str, ...]
    values: Floats
    ports: tuple[str, ...] = ()
    port_values: Floats = field(default_factory=no_ports)


def matrix_of(rows: Iterable[Sequence[float | None]]) -> npt.NDArray[np.float64]:
    """Return a row a GPU, NaN for None, in full precision."""
    return np.array(list(rows), dtype=np.float64)


def values_of(row: "npt.NDArray[np.floating[Any]]") -> Values:
    """Return one sample as the domain has it."""
    return tuple(None if value != value else value for value in row.tolist())  # noqa: PLR0124  # only NaN differs from itself


def pack_block(gpu_uuids: Sequence[str], values: "npt.NDArray[np.floating[Any]]", ports: Sequence[Port] = ()) -> bytes:
    packed = _head_of(gpu_uuids) + values.astype(_KIND, copy=False).tobytes()
    if not ports:
        return packed
    numbers = struct.pack(f"<{PORT_WIDTH * len(ports)}f", *[number for port in ports for number in port[1:]])
    return packed + _head_of([port[0] for port in ports]) + numbers


def _head_of(names: Sequence[str]) -> bytes:
    joined = "\x1f".join(names).encode()
    return _HEAD.pack(len(names), len(joined)) + joined


def unpack_block(content: bytes, schema: int) -> Block:
    """Return the block. Raises ``CodecError`` where it is cut short, or of an unknown schema."""
    gpu_uuids, values, end = _unpack_rows(content, 0, _width_of(schema))
    if end == len(content):
        return Block(gpu_uuids, values)
    ports, port_values, end = _unpack_rows(content, end, PORT_WIDTH)
    if end != len(content):
        raise CodecError(f"a block of {len(content)} bytes is longer than its {len(gpu_uuids)} GPUs and ports")
    return Block(gpu_uuids, values, ports, port_values)


def _unpack_rows(content: bytes, at: int, width: int) -> tuple[tuple[str, ...], Floats, int]:
    """Return names, a row of values each, and where they end. Raises ``CodecError``."""
    if len(content) < at + _HEAD.size:
        raise CodecError("a block without its head")
    num_rows, names_bytes = _HEAD.unpack_from(content, at)
    start = at + _HEAD.size + names_bytes
    end = start + num_rows * width * _KIND.itemsize
    names = content[at + _HEAD.size : start].split(_SEPARATOR) if num_rows else []
    if len(content) < end or len(names) != num_rows:
        raise CodecError(f"a block of {len(content)} bytes does not hold {num_rows} rows")
    values = np.frombuffer(content, _KIND, num_rows * width, start).reshape(num_rows, width)
    try:
        return tuple(name.decode() for name in names), values, end
    except UnicodeDecodeError as error:
        raise CodecError(f"a name that is no text: {error}") from error


def pack_segment(values: Floats) -> bytes:
    """Return the segment of one GPU's samples, (times × metrics)."""
    return zlib.compress(np.ascontiguousarray(values.T, dtype=_KIND).tobytes(), 1)


def unpack_segment(content: bytes, num_times: int, schema: int) -> Floats:
    """Return the samples, (times × metrics). Raises ``CodecError``."""
    size = num_times * _width_of(schema) * _KIND.itemsize
    try:
        raw = zlib.decompressobj().decompress(content, size + 1)
    except zlib.error as error:
        raise CodecError(f"a damaged segment: {error}") from error
    if len(raw) != size:
        raise CodecError(f"a segment of {len(raw)} bytes; {size} are needed for {num_times} samples")
    return np.frombuffer(raw, _KIND).reshape(_width_of(schema), num_times).T


def pack_ports(ports: Sequence[str], values: Floats) -> bytes:
    """Return the segment of all ports' samples, (ports × times × values)."""
    by_value = np.ascontiguousarray(values.transpose(0, 2, 1), dtype=_KIND)
    return zlib.compress(_head_of(ports) + by_value.tobytes(), 1)


def unpack_ports(content: bytes, num_times: int) -> tuple[tuple[str, ...], Floats]:
    """Return ports and their samples, (ports × times × values). Raises ``CodecError``."""
    try:
        raw = zlib.decompressobj().decompress(content, _MOST_PORT_BYTES)
    except zlib.error as error:
        raise CodecError(f"a damaged segment: {error}") from error
    ports, values, end = _unpack_rows(raw, 0, PORT_WIDTH * num_times)
    if end != len(raw):
        raise CodecError(f"a segment of {len(raw)} bytes is longer than its {len(ports)} ports")
    return ports, values.reshape(len(ports), PORT_WIDTH, num_times).transpose(0, 2, 1)


def pack_seconds(seconds: "npt.NDArray[np.integer[Any]]") -> bytes:
    return seconds.astype(_SECOND).tobytes()


def unpack_seconds(content: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(content, _SECOND).astype(np.int64)


def _width_of(schema: int) -> int:
    try:
        return WIDTHS[schema]
    except KeyError:
        raise CodecError(f"schema {schema} is not known here") from None
