"""Lines of CSV (RFC 4180) in which no cell becomes a formula of the spreadsheet that opens it."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Any, Final

END: Final = "\r\n"
"""The end of a line. The writer quotes a text with one of these characters in it."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_NEGATIVE: Final = re.compile(r"-[0-9]+(?:\.[0-9]+)?")


def line_of(cells: Sequence[Any]) -> str:
    """Return one row. Text with a line break in it is quoted, and the row then has several lines."""
    written = io.StringIO()
    csv.writer(written, lineterminator=END).writerow([_cell(each) for each in cells])
    return written.getvalue().removesuffix(END)


def _cell(value: Any) -> str:
    """Return the cell. A text that would be a formula gets an apostrophe in front: others wrote it.

    A negative number stays as it is, since amounts of money are texts.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) and not _NEGATIVE.fullmatch(value) else value
    return str(value)
