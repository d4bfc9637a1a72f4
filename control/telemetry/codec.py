"""Encoding of samples in blocks, chunks and exports: float32, little-endian, in the schema's order; NaN for None.

A block is one report: GPU by GPU, each with every metric. A chunk's segment is one GPU's hour, metric by metric,
compressed: a metric that does not change costs almost nothing. Counters beyond 2^24 are rounded to 7 digits.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from muster.domain.gpu.metrics import WIDTHS, Values

SECONDS_AN_HOUR: Final = 3_600
_HEAD: Final = struct.Struct("<HI")
_SEPARATOR: Final = b"\x1f"
_KIND: Final = np.dtype("<f4")
_SECOND: Final = np.dtype("<u2")

Floats = npt.NDArray[np.float32]


class CodecError(ValueError):
    """Bytes that this codec did not write."""


@dataclass(frozen=True, slots=True)
class Block:
    """One report's readings: ``values`` has a row a GPU and a column a metric."""

    gpu_uuids: tuple[str, ...]
    values: Floats


def matrix_of(rows: Iterable[Sequence[float | None]]) -> npt.NDArray[np.float64]:
    """Return a row a GPU, NaN for None, in full precision."""
    return np.array(list(rows), dtype=np.float64)


def values_of(row: "npt.NDArray[np.floating[Any]]") -> Values:
    """Return one sample as the domain has it."""
    return tuple(None if value != value else value for value in row.tolist())  # noqa: PLR0124  # only NaN differs from itself


def pack_block(gpu_uuids: Sequence[str], values: "npt.NDArray[np.floating[Any]]") -> bytes:
    names = "\x1f".join(gpu_uuids).encode()
    return _HEAD.pack(len(gpu_uuids), len(names)) + names + values.astype(_KIND, copy=False).tobytes()


def unpack_block(content: bytes, schema: int) -> Block:
    """Return the block. Raises ``CodecError`` where it is cut short, or of an unknown schema."""
    width = _width_of(schema)
    if len(content) < _HEAD.size:
        raise CodecError("a block without its head")
    num_gpus, names_bytes = _HEAD.unpack_from(content)
    start = _HEAD.size + names_bytes
    if len(content) != start + num_gpus * width * _KIND.itemsize:
        raise CodecError(f"a block of {len(content)} bytes does not hold {num_gpus} GPUs")
    names = content[_HEAD.size : start].split(_SEPARATOR) if num_gpus else []
    values = np.frombuffer(content, _KIND, offset=start).reshape(num_gpus, width)
    return Block(tuple(name.decode() for name in names), values)


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


def pack_seconds(seconds: "npt.NDArray[np.integer[Any]]") -> bytes:
    return seconds.astype(_SECOND).tobytes()


def unpack_seconds(content: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(content, _SECOND).astype(np.int64)


def _width_of(schema: int) -> int:
    try:
        return WIDTHS[schema]
    except KeyError:
        raise CodecError(f"schema {schema} is not known here") from None
