"""One measured figure with its bar, and the table that a suite's figures end in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal

SKIPPED: Final = "SKIPPED, NOTHING WAS MEASURED"


class NothingToMeasureError(Exception):
    """This machine lacks the hardware of the figures: they are neither made up nor written."""


class Basis(StrEnum):
    """Kind of a figure, which decides how it is compared between machines of different speed."""

    COUNT = "count"
    """Number that is no time, or seconds of a simulation: a count, a size, a share. It is compared as it is."""
    RATIO = "ratio"
    """Two sides of the same run, divided by each other. It is compared as it is."""
    CPU = "cpu"
    """CPU time, or work for each second of it: scaled by the calibration loop of the same run."""
    BUSY = "busy"
    """Clock time of work that keeps the cores busy throughout: scaled by the calibration loop too."""
    COMMITS = "commits"
    """Clock time of durable commits: their CPU time is scaled by the calibration loop, their waits by the bare rows."""
    CLOCK = "clock"
    """Clock time with timers and pauses in it, as a user waits for it. It is compared as it is."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure. ``bar`` None: nothing is guaranteed. ``peers``: further values of the same run, unscaled.

    ``raw``: the value as it was measured, if ``value`` is scaled to the reference machine. ``computed``: with
    ``Basis.COMMITS``, the part of ``value`` that is CPU time.
    """

    name: str
    value: float
    unit: str
    bar: float | None
    better: Literal["lower", "higher"] = "lower"
    peers: dict[str, float] = field(default_factory=dict)
    basis: Basis = field(kw_only=True)
    raw: float | None = field(default=None, kw_only=True)
    computed: float = field(default=0.0, kw_only=True)

    @property
    def holds(self) -> bool:
        if self.bar is None:
            return True
        return self.value <= self.bar if self.better == "lower" else self.value >= self.bar

    def scaled(self, slowness: float) -> "Figure":
        """Return the figure as the reference machine would have it; ``slowness`` 2: this one takes twice the time."""
        if self.basis in {Basis.CPU, Basis.BUSY}:
            value = self.value / slowness if self.better == "lower" else self.value * slowness
        elif self.basis is Basis.COMMITS:
            value = self.value - self.computed + self.computed / slowness
        else:
            return self
        return replace(self, value=value, raw=self.value if self.raw is None else self.raw)

    def row(self) -> dict[str, Any]:
        """Return the figure's entry in ``results/NAME.json``."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "bar": self.bar,
            "better": self.better,
            "holds": self.holds,
            "peers": self.peers,
            "basis": self.basis.value,
            "raw": self.value if self.raw is None else self.raw,
        }


Groups = Iterator[list[Figure]]
"""Groups of figures that ``measure`` yields, each measured together; the calibration loop runs between them."""


def calmest(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Return the best of the runs for each figure, and for a ratio (``×``) the middle one.

    A shared machine is twice as fast a minute later: the cost of the code shows where it was least disturbed. The two
    sides of a ratio may have met different moments, so that its best may be better than the code is.
    """
    return [_calmest_of(alike) for alike in zip(*runs, strict=True)]


def _calmest_of(alike: Sequence[Figure]) -> Figure:
    """Return one of the figures of one name, by their order from the best on."""
    best_first = sorted(alike, key=lambda figure: figure.value, reverse=alike[0].better == "higher")
    return best_first[len(alike) // 2 if alike[0].unit == "×" else 0]


def show(figures: Sequence[Figure]) -> None:
    """Print the table: ``basis`` says which values are scaled to the reference machine, ``measured`` what they were."""
    print(f"{'figure':<44} {'value':>14} {'bar':>12}  {'holds':<5}  {'basis':<7}  {'measured':>12}  peers")
    for figure in figures:
        bar = "" if figure.bar is None else f"{figure.bar:,.1f}"
        raw = "" if figure.raw is None else _number(figure.raw)
        peers = ", ".join(f"{name} {number:,.2f}" for name, number in figure.peers.items())
        print(
            f"{figure.name:<44} {f'{_number(figure.value)} {figure.unit}':>14} {bar:>12}  "
            f"{'yes' if figure.holds else 'NO':<5}  {figure.basis:<7}  {raw:>12}  {peers}"
        )


def _number(value: float) -> str:
    return f"{value:,.{1 if abs(value) >= 10 else 3}f}"
