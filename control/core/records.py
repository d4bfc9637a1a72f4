"""Records: rows as read models give them to the API and the console, apart from any session.

The record of a noun has the facts that leave `control`, under the names of the row's attributes. So no secret leaves
with a row, and no code outside `control` can change one.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

R = TypeVar("R", bound=msgspec.Struct)


def record_of(row: object, kind: type[R]) -> R:
    """Return the row's record: its attributes by the names of the fields of ``kind``."""
    return msgspec.convert(row, kind, from_attributes=True)


def records_of(rows: Iterable[object], kind: type[R]) -> list[R]:
    """Return the records of the rows, in their order."""
    return [record_of(row, kind) for row in rows]
