"""One measured figure with its bar, and the table and file that they end in."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

RESULTS: Final = Path(__file__).parent / "results"


class NothingToMeasureError(Exception):
    """This machine lacks what the figures are of: they are neither made up nor written."""


@dataclass(frozen=True, slots=True)
class Figure:
    """``bar`` None: nothing is promised. ``peers`` holds what was measured beside it in the same run."""

    name: str
    value: float
    unit: str
    bar: float | None
    better: Literal["lower", "higher"] = "lower"
    peers: dict[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        if self.bar is None:
            return True
        return self.value <= self.bar if self.better == "lower" else self.value >= self.bar


def calmest(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Of each figure the best of its runs, of a ratio (``×``) the middle one.

    A shared machine is twice as fast a minute later: what the code costs shows where it was least disturbed. The two
    sides of a ratio may have met different moments, so that its best may be better than the code is.
    """
    return [_calmest_of(alike) for alike in zip(*runs, strict=True)]


def _calmest_of(alike: Sequence[Figure]) -> Figure:
    """Of one name, from the best on."""
    best_first = sorted(alike, key=lambda figure: figure.value, reverse=alike[0].better == "higher")
    return best_first[len(alike) // 2 if alike[0].unit == "×" else 0]


def write(name: str, figures: list[Figure]) -> Path:
    """``results/<name>.json``: a list of figures, each with whether it holds."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    load = round(os.getloadavg()[0], 2)
    rows = [{**asdict(figure), "holds": figure.holds, "load_average": load} for figure in figures]
    path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return path


def show(figures: list[Figure]) -> None:
    print(f"{'figure':<44} {'value':>12} {'bar':>12}  holds  peers")
    for figure in figures:
        digits = 1 if abs(figure.value) >= 10 else 3
        value, bar = f"{figure.value:,.{digits}f} {figure.unit}", "" if figure.bar is None else f"{figure.bar:,.1f}"
        peers = ", ".join(f"{name} {number:,.2f}" for name, number in figure.peers.items())
        print(f"{figure.name:<44} {value:>12} {bar:>12}  {'yes' if figure.holds else 'NO':<5}  {peers}")
