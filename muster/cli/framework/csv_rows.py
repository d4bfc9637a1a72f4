"""Rows as CSV (RFC 4180), for spreadsheets: whatever the other options say, the output is these lines."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import Format

_FORMULA = ("=", "+", "-", "@", "\t")


@dataclass(frozen=True, slots=True)
class CsvRows:
    """``names``: the columns, each a field of the rows."""

    rows: Sequence[Mapping[str, Any]]
    names: Sequence[str]
    code: int = Exit.OK

    def documents(self) -> Sequence[object]:
        return self.rows

    def lines(self, shape: Format) -> Iterator[str]:
        if shape.as_json or shape.as_yaml:
            raise CommandError("--csv cannot be used together with --json or --yaml", "Leave out one.", Exit.USAGE)
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.names)
        writer.writerows([_cell(row.get(name)) for name in self.names] for row in self.rows)
        yield text.getvalue().rstrip("\n")


def _cell(value: object) -> object:
    """Return the value; a text that a spreadsheet would compute is marked as a text."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value
