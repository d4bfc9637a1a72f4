"""Tables on a terminal: ids and other arguments of commands stay whole, free text is folded, and nothing is cut."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len

from muster.cli.framework.terminal import takes_escapes

Document = Mapping[str, Any]
NARROW: Final = 80
GAP: Final = "  "
LEAST_TEXT: Final = 16
"""Least width of folded text, however little space is left."""
_COMMAND: Final = re.compile(r"`[^`]+`")
_KEPT: Final = "\x00"
"""Stand-in for a space at which no line may break; ``printable`` removes every other one."""
_STATE_STYLES: Final = {
    "SUCCEEDED": "32",
    "HEALTHY": "32",
    "LIVE": "32",
    "PASSED": "32",
    "ok": "32",
    "ACTIVE": "36",
    "FAILED": "31",
    "LOST": "31",
    "QUARANTINED": "31",
    "OPEN": "31",
    "fail": "31",
    "HELD": "33",
    "RECOVERING": "33",
    "SILENT": "33",
    "SUSPECT": "33",
    "REPAIR": "33",
    "PROBATION": "33",
    "UNPROVEN": "33",
    "warn": "33",
    "CANCELLED": "2",
    "RETIRED": "2",
    "closed": "2",
    "revoked": "2",
}


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table. ``cell`` gives its text; ``wide`` gives a longer text for ``--wide``.

    ``is_text``: free text, which may be folded over several lines; all else stays whole.
    """

    name: str
    cell: Callable[[Document], object]
    wide: Callable[[Document], object] | None = None
    only_wide: bool = False
    is_text: bool = False


def has_colour() -> bool:
    """Return whether to use colour: on a terminal only. Colour never adds information that the text lacks."""
    return "NO_COLOR" not in os.environ and takes_escapes(sys.stdout)


def width() -> int:
    """Return the terminal's width; without a terminal, ``COLUMNS`` or 80."""
    return max(20, shutil.get_terminal_size((NARROW, 24)).columns)


def table_lines(
    columns: Sequence[Column], documents: Sequence[Any], *, is_wide: bool, has_header: bool = True, indent: int = 0
) -> Iterator[str]:
    """Yield a table's lines within the terminal's width less ``indent``, or as wide as the values are."""
    shown = [column for column in columns if is_wide or not column.only_wide]
    rows = [[_words(column, document, is_wide=is_wide) for column in shown] for document in documents]
    heads = [column.name if has_header else "" for column in shown]
    widths = [max([cell_len(head), *(cell_len(row[at]) for row in rows)]) for at, head in enumerate(heads)]
    if not is_wide:
        widths = _fitted(shown, widths, width() - indent)
    if has_header:
        yield _painted(_joined(heads, widths), "1")
    for row in rows:
        yield from _row_lines(shown, row, widths)


def _words(column: Column, document: Document, *, is_wide: bool) -> str:
    value = (column.wide if is_wide and column.wide is not None else column.cell)(document)
    return printable("" if value is None else str(value))


def printable(words: str) -> str:
    """Return text on one line, without characters that would control a terminal: others wrote it."""
    return "".join(each if each.isprintable() else " " if each.isspace() else "\ufffd" for each in words)


def _fitted(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Return widths: free text shares the width that the other columns leave; a narrow one keeps its own."""
    texts = [at for at, column in enumerate(columns) if column.is_text]
    left = room - len(GAP) * (len(columns) - 1) - sum(each for at, each in enumerate(widths) if at not in texts)
    fitted = list(widths)
    for done, at in enumerate(sorted(texts, key=lambda at: widths[at])):
        fitted[at] = min(widths[at], max(LEAST_TEXT, left // (len(texts) - done)))
        left -= fitted[at]
    return fitted


def _row_lines(columns: Sequence[Column], row: list[str], widths: list[int]) -> Iterator[str]:
    folded = [_folded(cell, widths[at]) if columns[at].is_text else [cell] for at, cell in enumerate(row)]
    for line in range(max(len(cell) for cell in folded)):
        cells = [cell[line] if line < len(cell) else "" for cell in folded]
        yield _joined(cells, widths)


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    line = GAP.join(
        _painted(cell, _STATE_STYLES.get(cell, "")) + " " * (widths[at] - cell_len(cell))
        for at, cell in enumerate(cells)
    )
    return line.rstrip()


def _painted(words: str, style: str) -> str:
    return f"\x1b[{style}m{words}\x1b[0m" if style and words and has_colour() else words


def paragraphs(lines: Sequence[str], *, is_wide: bool) -> Iterator[str]:
    """Yield each line folded to the terminal's width, under its own indent; an id is never broken."""
    for line in map(_kept_indent, lines):
        indent = line[: len(line) - len(line.lstrip())]
        if is_wide or cell_len(line) <= width():
            yield line
            continue
        yield from _folded(line.strip(), width(), first=indent, rest=indent + "  ", breaks_words=False)


def _folded(words: str, room: int, *, first: str = "", rest: str = "", breaks_words: bool = True) -> list[str]:
    """Fold text; a command in backticks stays on one line, so that it can be copied."""
    kept = _COMMAND.sub(lambda found: found[0].replace(" ", _KEPT), words)
    lines = textwrap.wrap(
        kept,
        room,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=breaks_words,
        break_on_hyphens=False,
    )
    return [line.replace(_KEPT, " ") for line in lines] or [""]


def _kept_indent(line: str) -> str:
    return printable(line).rstrip()
