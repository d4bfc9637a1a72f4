"""Objects as CSV (RFC 4180), for spreadsheets: a row an object, with every field of the API's objects."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import Format

AsCsv = Annotated[bool, typer.Option("--csv", help="Every field as CSV, for spreadsheets.")]
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_NEGATIVE: Final = re.compile(r"-[0-9]+(?:\.[0-9]+)?")
_END: Final = "\r\n"
"""The writer quotes a text with one of these characters in it."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Objects of one kind as CSV. ``fields``: the header, also where there is no object. ``note``: for
    people, to the error stream.

    A field that is an object becomes a column for each of its members, ``field.member``.
    """

    found: Sequence[Any]
    fields: Sequence[str]
    note: str = ""
    code: int = Exit.OK

    def documents(self) -> Sequence[object]:
        return self.found

    def lines(self, shape: Format) -> Iterator[str]:
        """Yield the rows. Raises CommandError: another format is asked for as well."""
        if shape.as_json or shape.as_yaml:
            raise CommandError("--csv cannot be used with --json or --yaml", "Leave out one of them.", Exit.USAGE)
        rows = [dict(_flat(each)) for each in self.found]
        known = dict.fromkeys([*self.fields, *(name for row in rows for name in row)])
        members = {name.partition(".")[0] for name in known if "." in name}
        header = sorted((name for name in known if name not in members), key=self._place_of)
        if self.note:
            typer.echo(self.note, err=True)
        yield line_of(header)
        for row in rows:
            yield line_of([row.get(name) for name in header])

    def _place_of(self, name: str) -> tuple[int, str]:
        field, _, member = name.partition(".")
        return (self.fields.index(field) if field in self.fields else len(self.fields)), member


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{member}", each) for member, each in value.items())
        else:
            yield name, value


def _cell(value: Any) -> str:
    """Return the cell. A text that would be a formula gets an apostrophe in front: others wrote it.

    A negative number stays as it is, since amounts of money are texts.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) and not _NEGATIVE.fullmatch(value) else value
    return str(value)


def line_of(cells: Sequence[Any]) -> str:
    """Return one row. Text with a line break in it is quoted, and the row then has several lines."""
    written = io.StringIO()
    csv.writer(written, lineterminator=_END).writerow([_cell(each) for each in cells])
    return written.getvalue().removesuffix(_END)
