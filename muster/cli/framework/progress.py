"""Progress of long work, on the error stream: a bar on a terminal, one line a change elsewhere."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import typer

from muster.cli.framework.tables import printable
from muster.cli.framework.terminal import takes_escapes

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


class Progress(Protocol):
    def report(self, words: str, done: float | None = None, total: float | None = None) -> None:
        """Show the current step; without ``total`` the amount of work is unknown."""


@contextmanager
def progress(what: str, *, has_lines: bool = True) -> Iterator[Progress]:
    """Yield a display of progress. ``what`` stands before the bar. ``has_lines=False``: for short work, without log
    lines.
    """
    if not takes_escapes(sys.stderr) or ("TERM" not in os.environ and sys.platform != "win32"):
        yield _Lines(what, is_silent=not has_lines)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(24), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        yield _Bar(bars, bars.add_task(what, total=None), what)


class _Lines:
    def __init__(self, what: str, *, is_silent: bool) -> None:
        self._what = what
        self._is_silent = is_silent
        self._shown = ""

    def report(self, words: str, done: float | None = None, total: float | None = None) -> None:
        share = "" if done is None or not total else f" ({done:g} of {total:g})"
        line = printable(f"{self._what}: {words}{share}")
        if line != self._shown and not self._is_silent:
            typer.echo(line, err=True)
        self._shown = line


class _Bar:
    def __init__(self, bars: "Bars", task: "TaskID", what: str) -> None:
        self._bars, self._task, self._what = bars, task, what

    def report(self, words: str, done: float | None = None, total: float | None = None) -> None:
        words = printable(f"{self._what}: {words}")
        self._bars.update(self._task, description=words, completed=done or 0, total=total)
