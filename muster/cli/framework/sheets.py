"""Objects as CSV (RFC 4180), for spreadsheets: a row an object, with every field of the API's objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import Format
from muster.documents.csv_lines import line_of

AsCsv = Annotated[bool, typer.Option("--csv", help="Every field as CSV, for spreadsheets.")]


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
