"""Output of the tour: headings, lines as things happen, a live line in a terminal, and the summary."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table


class StepFailedError(Exception):
    """An expected result did not come. ``log``: where to read why."""

    def __init__(self, expected: str, seen: str, log: Path) -> None:
        self.expected = expected
        self.seen = seen
        self.log = log
        super().__init__(f"expected {expected}; seen: {seen}")


class InterruptedTourError(Exception):
    """The user asked to stop."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the tour proved, in the words of its reader."""

    stage: str
    expected: str
    seen: str


@dataclass(frozen=True, slots=True)
class Measure:
    """One measurement. ``bar``: its limit; ``is_required``: to be kept on any machine, however busy."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    is_required: bool = False

    @property
    def holds(self) -> bool:
        return self.bar is None or self.value <= self.bar


class Teller:
    """The printer to ``console``; a line that changes in place is shown only in a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.started_s = time.monotonic()
        self.checks: list[Check] = []
        self.measures: list[Measure] = []
        self._stage = ""

    def stage(self, number: int, title: str, why: str) -> None:
        self._stage = str(number)
        self.console.print(f"\n[bold]{number}  {title}[/]")
        self.console.print(f"   [dim]{why}[/]")

    def write(self, words: str) -> None:
        self.console.print(f"   [dim]{self._clock()}[/]  {words}", soft_wrap=True)

    def passed(self, expected: str, seen: str) -> None:
        self.checks.append(Check(self._stage, expected, seen))
        self.console.print(
            f"   [dim]{self._clock()}[/]  [green]✓[/] {escape(expected)}: {escape(seen)}", soft_wrap=True
        )

    def measured(
        self, name: str, value: float, bar: float | None = None, *, unit: str = "s", is_required: bool = False
    ) -> None:
        self.measures.append(Measure(name, value, unit, bar, is_required))

    @contextmanager
    def waiting(self, words: str) -> Iterator[Callable[[str], None]]:
        """Yield a function for the text of a live line during a wait; without a terminal the line is not shown."""
        if not self.console.is_terminal:
            yield lambda _: None
            return
        with self.console.status(f"   {words}", spinner="dots") as status:
            yield lambda more: status.update(f"   {words}  [dim]{escape(more)}[/]")

    def summary(self) -> bool:
        """Print the tables. Return whether every guaranteed time held."""
        proved = Table(title="what held", title_justify="left", title_style="bold")
        for column in ("", "expected", "seen"):
            proved.add_column(column, overflow="fold")
        for check in self.checks:
            proved.add_row(check.stage, escape(check.expected), escape(check.seen))
        times = Table(title="what it took", title_justify="left", title_style="bold")
        for column in ("", "measured", "at most", "held"):
            times.add_column(column, justify="left" if column in {"", "held"} else "right")
        for one in self.measures:
            bar = "" if one.bar is None else f"{one.bar:g} {one.unit}"
            held = "" if one.bar is None else "yes" if one.holds else "NO"
            times.add_row(one.name, f"{one.value:.2f} {one.unit}", bar, held)
        self.console.print()
        self.console.print(proved)
        self.console.print(times)
        return all(one.holds for one in self.measures if one.is_required)

    def failed(self, fault: StepFailedError) -> None:
        self.console.print(f"\n[bold red]not held[/] (step {self._stage})")
        self.console.print(f"  expected  {escape(fault.expected)}", soft_wrap=True)
        self.console.print(f"  seen      {escape(str(fault.seen))}", soft_wrap=True)
        self.console.print(f"  read      {escape(str(fault.log))}", soft_wrap=True)

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self.started_s)
        return f"{seconds // 60}:{seconds % 60:02}"
