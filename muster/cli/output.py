"""What commands print: tables that fit the terminal, or the API's own objects as JSON."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="The API's objects as JSON, for programs.")]

_STYLES = {
    "SUCCEEDED": "green",
    "ACTIVE": "cyan",
    "LIVE": "green",
    "FAILED": "red",
    "LOST": "red",
    "HELD": "yellow",
    "RECOVERING": "yellow",
    "SILENT": "yellow",
    "CANCELLED": "dim",
}


def console() -> Console:
    return Console(highlight=False, no_color=True if "NO_COLOR" in os.environ else None)


def print_json(document: object, *, indent: int | None = 2) -> None:
    """``indent=None``: one line, for streams of objects."""
    sys.stdout.write(json.dumps(document, indent=indent, ensure_ascii=not _is_utf8()) + "\n")
    sys.stdout.flush()


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """``empty`` is what to say, and what to do, when there is nothing."""
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for position, name in enumerate(columns):
        # Its first column is what the next command is typed with: never cut, never folded. No other word is cut either.
        table.add_column(name, no_wrap=position == 0, overflow="fold")
    count = 0
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
        count += 1
    if count:
        console().print(table)
    else:
        typer.echo(empty)


def _cell(value: object) -> Text:
    words = "" if value is None else str(value)
    return Text(words, style=_STYLES.get(words, ""))


def age(moment: str | None) -> str:
    """How long ago, in one unit."""
    if moment is None:
        return "never"
    seconds = max(0, int((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def say_consequences(document: dict[str, Any]) -> None:
    typer.echo("dry run: nothing was changed. It would have:")
    for item in document.get("consequences", []):
        words = item.get("kind") or f"message to {item.get('key')}"
        typer.echo(f"  - {words} {item.get('subject_id', '')}".rstrip())
