"""The one mechanism of lists: an order, a page of it, and a stretch of time.

A list names its orders (``Sort``). A page continues behind the values of the order's keys, so a cursor means the same
page whatever was added or removed meanwhile. The last key of each order is unique, so no row is left out or repeated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Select, SQLColumnExpression, func, literal_column, tuple_

from muster.domain.errors import InvalidCursorError

S = TypeVar("S", bound=Select[*tuple[Any, ...]])
_LARGEST: Final = 2**63 - 1
"""The largest number that a column holds; a larger one in a cursor would be an error of the database."""


class TimeOrder(StrEnum):
    """The order of a list by time."""

    NEWEST = "newest"
    OLDEST = "oldest"


class NameOrder(StrEnum):
    """The order of a list of things with names: by name, or by the time at which they were created."""

    NAME = "name"
    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True, slots=True)
class SortKey:
    """One value by which rows are in order. ``of``: the value in a listed object; ``read``: from a cursor's text."""

    column: SQLColumnExpression[Any]
    of: Callable[[Any], Any]
    read: Callable[[str], Any] = str


@dataclass(frozen=True, slots=True)
class Sort:
    """An order of rows by ``keys``, the last of which is unique."""

    keys: tuple[SortKey, ...]
    is_descending: bool = False

    def position_of(self, found: Any) -> list[str]:
        """Return the values of the keys in one found row, as texts for a cursor."""
        return [_text(key.of(found)) for key in self.keys]

    def page(self, query: S, part: "Part") -> S:
        """Return the query of one page of ``query``. Raises InvalidCursorError: a position of another order."""
        if part.behind is not None:
            place, last = tuple_(*(key.column for key in self.keys)), tuple(self.values_in(part.behind))
            query = query.where(place < last if self.is_descending else place > last)
        columns = [key.column.desc() if self.is_descending else key.column.asc() for key in self.keys]
        return query.order_by(*columns).limit(part.limit)

    def values_in(self, position: Sequence[str]) -> list[Any]:
        """Return the values in a position. Raises InvalidCursorError as ``page`` does."""
        try:
            return [key.read(text) for key, text in zip(self.keys, position, strict=True)]
        except ValueError as error:
            raise InvalidCursorError from error


@dataclass(frozen=True, slots=True)
class Part:
    """What is wanted of a list: at most ``limit`` rows ``behind`` the position of the last page's end.

    ``limit`` None: all. ``sort``: the order; None: the list's own.
    """

    limit: int | None
    behind: Sequence[str] | None = None
    sort: Sort | None = None

    def of(self, query: S, own: Sort) -> S:
        """Return the query of this part. ``own``: the list's order. Raises InvalidCursorError as ``Sort.page`` does."""
        return (self.sort or own).page(query, self)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time: at or after ``since``, and before ``until``; None: without a bound."""

    since: datetime | None = None
    until: datetime | None = None

    def conditions(self, column: SQLColumnExpression[Any]) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions that ``column`` is in it."""
        if self.since is not None:
            yield column >= self.since
        if self.until is not None:
            yield column < self.until


ALWAYS: Final = Span()
NEVER: Final = datetime.fromtimestamp(0, UTC)
"""The time, in an order, of what never happened."""
_NEVER_SQL: Final[ColumnElement[Any]] = literal_column("'1970-01-01 00:00:00+00'::timestamptz")


def by_time(*keys: SortKey) -> Mapping[TimeOrder, Sort]:
    """Return the two orders of a list by time. ``keys``: the time and what is unique, or one id that grows with it."""
    return MappingProxyType({TimeOrder.NEWEST: Sort(keys, is_descending=True), TimeOrder.OLDEST: Sort(keys)})


def by_name(names: tuple[SortKey, ...], created: SortKey, own_id: SortKey) -> Mapping[NameOrder, Sort]:
    """Return the orders of a list of things with names. ``names``: by which they are in order; ``own_id`` is unique."""
    return MappingProxyType(
        {
            NameOrder.NAME: Sort((*names, own_id)),
            NameOrder.NEWEST: Sort((created, own_id), is_descending=True),
            NameOrder.OLDEST: Sort((created, own_id)),
        }
    )


def moment_key(column: SQLColumnExpression[Any], of: Callable[[Any], datetime | None]) -> SortKey:
    """Return the key of a time that may be None: then it is earlier than all others."""
    return SortKey(func.coalesce(column, _NEVER_SQL), lambda found: of(found) or NEVER, datetime.fromisoformat)


def number_in(text: str) -> int:
    """Return the number. Raises ValueError: it is none, or larger than a column holds."""
    if not text.isascii() or not text.isdigit() or int(text) > _LARGEST:
        raise ValueError(text)
    return int(text)


def signed_number_in(text: str) -> int:
    """Return the number, which may be negative. Raises ValueError as ``number_in`` does."""
    return -number_in(text[1:]) if text.startswith("-") else number_in(text)


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
