"""Long arrays of numbers and texts as parameters, packed whole by numpy: psycopg's own lists cost a call an element."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from psycopg import Connection
from psycopg.adapt import Dumper
from psycopg.pq import Format

TEXT_SEPARATOR: Final = "\x1f"
"""Stands between texts that travel as one; ``string_to_array`` parts them. No text so sent may hold it."""

_INT8: Final = (20, 1016)
_FLOAT8: Final = (701, 1022)


@dataclass(frozen=True, slots=True)
class PackedInts:
    """An ``int8[]`` in PostgreSQL's binary form."""

    content: bytes


@dataclass(frozen=True, slots=True)
class PackedFloats:
    """A ``float8[]`` in PostgreSQL's binary form."""

    content: bytes


def packed_ints(values: "list[int] | npt.NDArray[np.int64]") -> PackedInts:
    return PackedInts(_packed(np.asarray(values, dtype=np.int64), _INT8[0], ">i8"))


def packed_floats(values: "npt.NDArray[np.float64]") -> PackedFloats:
    """Of any shape, in row order."""
    return PackedFloats(_packed(values.reshape(-1), _FLOAT8[0], ">f8"))


def joined_texts(texts: Iterable[str]) -> str:
    return TEXT_SEPARATOR.join(texts)


def _packed(values: "npt.NDArray[Any]", element_oid: int, kind: str) -> bytes:
    """Dimensions, no NULLs, the element's type, length, lower bound; then each element behind its own length."""
    head = np.array([1, 0, element_oid, len(values), 1] if len(values) else [0, 0, element_oid], dtype=">i4")
    elements = np.empty(len(values), dtype=[("length", ">i4"), ("value", kind)])
    elements["length"] = 8
    elements["value"] = values
    return head.tobytes() + elements.tobytes()


class _PackedDumper(Dumper):
    format = Format.BINARY
    array_oid: ClassVar[int]

    def __init__(self, cls: type, context: Any = None) -> None:
        super().__init__(cls, context)
        self.oid = self.array_oid

    def dump(self, obj: Any) -> bytes:
        content: bytes = obj.content
        return content


class _IntsDumper(_PackedDumper):
    array_oid = _INT8[1]


class _FloatsDumper(_PackedDumper):
    array_oid = _FLOAT8[1]


def register(connection: "Connection[Any]") -> None:
    """Teach one connection to send packed arrays."""
    connection.adapters.register_dumper(PackedInts, _IntsDumper)
    connection.adapters.register_dumper(PackedFloats, _FloatsDumper)
