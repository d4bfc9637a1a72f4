"""Long arrays of numbers and texts as parameters, packed whole by numpy: psycopg's own lists cost a call an element."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from psycopg import Connection
from psycopg.adapt import Dumper
from psycopg.pq import Format
from sqlalchemy import ARRAY, ColumnElement, Text, any_, bindparam, literal
from sqlalchemy.orm import InstrumentedAttribute

TEXT_SEPARATOR: Final = "\x1f"
"""Stands between texts that travel as one; ``string_to_array`` parts them. No text so sent may hold it."""
PART_SEPARATOR: Final = "\x1e"
"""The same between lists of such."""

_INT8: Final = 20
_INT8_ARRAY: Final = 1016


@dataclass(frozen=True, slots=True)
class PackedInts:
    """An ``int8[]`` in PostgreSQL's binary form."""

    content: bytes


def packed_ints(values: "list[int] | npt.NDArray[np.int64]") -> PackedInts:
    """Dimensions, no NULLs, the element's type, length, lower bound; then each element behind its own length."""
    head = np.array([1, 0, _INT8, len(values), 1] if len(values) else [0, 0, _INT8], dtype=">i4")
    elements = np.empty(len(values), dtype=[("length", ">i4"), ("value", ">i8")])
    elements["length"] = 8
    elements["value"] = values
    return PackedInts(head.tobytes() + elements.tobytes())


def within(column: "ColumnElement[Any] | InstrumentedAttribute[Any]", ids: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition ``column.in_(ids)`` as one parameter, so that any number of ids is one statement."""
    found: ColumnElement[bool] = column == any_(literal(list(ids), ARRAY(Text)))
    return found


def within_parameter(column: "ColumnElement[Any] | InstrumentedAttribute[Any]", name: str) -> ColumnElement[bool]:
    """Return the condition ``within``, with the ids as the parameter ``name`` of a statement that is built once."""
    found: ColumnElement[bool] = column == any_(bindparam(name, type_=ARRAY(Text)))
    return found


def joined_texts(texts: Iterable[str]) -> str:
    return TEXT_SEPARATOR.join(texts)


def joined_parts(parts: Iterable[Iterable[str]]) -> str:
    """Join lists of texts to one text."""
    return PART_SEPARATOR.join(map(joined_texts, parts))


class _IntsDumper(Dumper):
    format = Format.BINARY
    oid = _INT8_ARRAY

    def dump(self, obj: Any) -> bytes:
        content: bytes = obj.content
        return content


def register(connection: "Connection[Any]") -> None:
    """Teach one connection to send packed arrays."""
    connection.adapters.register_dumper(PackedInts, _IntsDumper)
