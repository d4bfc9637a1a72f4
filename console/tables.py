"""Tables that the server sorts by ``?sort=``, cuts into pages, and returns as CSV in the order in which they are shown.

``sort`` names a table of the page and one of its columns, ``jobs.due``; with ``-`` in front the largest comes first.
``page`` is of that table; all others show their first page in their own order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import Query

from muster.documents.csv_lines import END, line_of
from muster.domain.errors import ValidationFailedError

T = TypeVar("T")
A_PAGE: Final = 25


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column. ``of``: the value by which rows are in order, and which CSV has; None comes last.

    ``is_shown``: whether the page has it; ``is_written``: whether CSV has it.
    """

    name: str
    title: str
    of: Callable[[T], Any]
    is_number: bool = False
    is_shown: bool = True
    is_sortable: bool = True
    is_written: bool = True


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column. ``sort``: what its link asks for; empty: it is no link.

    ``direction``: as ``aria-sort`` has it; empty: the table is in order by another column.
    """

    title: str
    is_number: bool
    sort: str
    direction: str


@dataclass(frozen=True, slots=True)
class Order:
    """The parameters of a page with tables."""

    sort: Annotated[str | None, Query(max_length=80, pattern="^-?[a-z_]+[.][a-z_0-9]+$")] = None
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1

    @property
    def column(self) -> str:
        """The table and column that is asked for; empty without one."""
        return (self.sort or "").removeprefix("-")

    def require(self, tables: Iterable["Table[Any]"]) -> None:
        """Raise ``ValidationFailedError`` where it names no column of the page's tables."""
        accepted = [f"{table.name}.{column.name}" for table in tables for column in table.columns if column.is_sortable]
        if self.sort is not None and self.column not in accepted:
            words = f"is one of: {', '.join(accepted)}; with `-` in front the largest comes first"
            raise ValidationFailedError.at("sort", "unknown", words)


@dataclass(frozen=True)
class Table(Generic[T]):
    """What a table has.

    ``own``: its order where none is asked for: a column's name, with ``-`` in front or not; empty: as its rows come.
    """

    name: str
    columns: tuple[Column[T], ...]
    own: str
    size: int = A_PAGE

    def order_in(self, order: Order) -> str:
        """Return the column by which it is in order, and ``-`` in front of it as in ``own``."""
        name, _, column = order.column.partition(".")
        if name != self.name:
            return self.own
        return f"{'-' if (order.sort or '').startswith('-') else ''}{column}"

    def column(self, name: str) -> Column[T]:
        return next(each for each in self.columns if each.name == name)

    def in_order(self, rows: Iterable[T], order: Order) -> list[T]:
        by = self.order_in(order)
        if not by:
            return list(rows)
        return _sorted(rows, self.column(by.removeprefix("-")), is_descending=by.startswith("-"))

    def shown(self, rows: Iterable[T], order: Order) -> "TablePage[T]":
        """Return the page of the rows that is asked for, at most the last one."""
        by, every = self.order_in(order), self.in_order(rows, order)
        num_pages = max(1, -(-len(every) // self.size))
        page = min(order.page, num_pages) if order.column.startswith(f"{self.name}.") else 1
        return TablePage(self, by, every[(page - 1) * self.size : page * self.size], len(every), page, num_pages)

    def csv(self, rows: Iterable[T], order: Order) -> str:
        """Return all rows as CSV, in the order that is asked for."""
        return "".join(self.lines(self.in_order(rows, order)))

    def lines(self, rows: Iterable[T]) -> Iterator[str]:
        """Yield the lines of CSV of rows that are in order."""
        written = [each for each in self.columns if each.is_written]
        yield line_of([each.name for each in written]) + END
        for row in rows:
            yield line_of([_cell(each.of(row)) for each in written]) + END

    def heads(self, by: str) -> Iterator[Head]:
        """Yield the heads. A press on a column sorts by it, numbers from the largest down; a second one turns it."""
        for each in self.columns:
            if each.is_shown:
                is_own, is_down = by.removeprefix("-") == each.name, by.startswith("-")
                turned = not is_down if is_own else each.is_number
                direction = ("descending" if is_down else "ascending") if is_own else ""
                sort = f"{'-' if turned else ''}{self.name}.{each.name}"
                yield Head(each.title, each.is_number, sort if each.is_sortable else "", direction)


@dataclass(frozen=True)
class TablePage(Generic[T]):
    """A page of a table. ``by``: the column of its order, with ``-`` in front if the largest is first."""

    table: Table[T]
    by: str
    rows: Sequence[T]
    num_rows: int
    page: int = 1
    num_pages: int = 1

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def heads(self) -> list[Head]:
        return list(self.table.heads(self.by))

    @property
    def sort(self) -> str:
        """The order as ``?sort=`` has it; empty: as the rows come."""
        return self.by and f"{'-' if self.by.startswith('-') else ''}{self.name}.{self.by.removeprefix('-')}"


def table_named(name: str, tables: Mapping[str, T]) -> T:
    """Return a table by its name. Raises ``ValidationFailedError``, which names the accepted ones."""
    if name not in tables:
        raise ValidationFailedError.at("table", "unknown", f"is one of: {', '.join(tables)}")
    return tables[name]


def _sorted(rows: Iterable[T], column: Column[T], *, is_descending: bool) -> list[T]:
    """Return the rows in order. Equal ones stay as they come, and those without a value are the last."""
    keyed = [(column.of(row), row) for row in rows]
    known = [one for one in keyed if one[0] is not None]
    known.sort(key=lambda one: _key(one[0]), reverse=is_descending)
    return [row for _, row in known] + [row for value, row in keyed if value is None]


def _key(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return f"{value:f}"
    return " ".join(value) if isinstance(value, (list, tuple)) else value
