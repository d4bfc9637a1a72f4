"""The ranks of a job as a grid of cells: own compute in the upper half of each, its wait in the lower one."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from control.jobs.rank_views import RankTimes
from muster.domain.robust import is_figure

MOST_CELLS: Final = 1_024
"""Of a wider job each cell shows the rank with the longest own compute among its neighbours."""
FEW: Final = 64
"""Up to so many cells are large, with the rank's number below."""
OWN_LEVELS: Final = (0.95, 1.05, 1.1, 1.2, 1.5)
"""Own compute ÷ the median of all ranks, from which the next darker colour begins."""
WAIT_LEVELS: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Wait ÷ (own compute + wait), from which the next darker colour begins."""
_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class RankCell:
    """``rank``: the rank that is shown. ``own_level`` and ``wait_level``: from 0, the lightest. None: not known."""

    rank: int
    own_level: int
    wait_level: int | None
    is_odd: bool
    words: str


@dataclass(frozen=True, slots=True)
class RankGrid:
    """``fold``: ranks that share one cell. ``words``: the picture as text."""

    cells: Sequence[RankCell]
    num_ranks: int
    fold: int
    words: str

    @property
    def has_numbers(self) -> bool:
        return len(self.cells) <= FEW


def duration(seconds: float) -> str:
    """Return seconds with three digits, so that ranks can be compared."""
    is_short = seconds < 0.9995  # it would be shown as 1e+03 ms
    return f"{seconds * 1000:.3g} ms" if is_short else f"{seconds:.3g} s"


def grid_of(times: Sequence[RankTimes], odd: Collection[int] = ()) -> RankGrid | None:
    """Return the grid; None for fewer than two ranks with a pace. ``odd``: ranks that stand out."""
    known = [row for row in times if is_figure(row.own_s)]
    if len(known) < 2:
        return None
    usual_s = median(row.own_s or 0.0 for row in known)
    fold = -(-len(known) // MOST_CELLS)
    shown = [_foremost(known[first : first + fold], odd) for first in range(0, len(known), fold)]
    cells = [_cell(row, usual_s, is_odd=row.rank in odd) for row in shown]
    return RankGrid(cells, len(known), fold, _in_words(known, odd))


def _foremost(together: Sequence[RankTimes], odd: Collection[int]) -> RankTimes:
    """Return the rank that its cell shows: one that stands out, else the one with the longest own compute."""
    return max(together, key=lambda row: (row.rank in odd, row.own_s or 0.0))


def _cell(row: RankTimes, usual_s: float, *, is_odd: bool) -> RankCell:
    own_s = row.own_s or 0.0
    ratio = own_s / usual_s if usual_s > 0 else 1.0
    words = [f"rank {row.rank}: own compute {duration(own_s)}, {ratio:.2f} times the median"]
    wait_level = None
    if row.wait_s is not None and is_figure(row.wait_s):
        share = row.wait_s / (own_s + row.wait_s) if row.wait_s > 0 else 0.0
        wait_level = bisect_right(WAIT_LEVELS, share)
        words.append(f"wait {duration(row.wait_s)}, {share:.0%} of both")
    words += ["stands out"] if is_odd else []
    return RankCell(row.rank, bisect_right(OWN_LEVELS, ratio), wait_level, is_odd, "; ".join(words))


def _in_words(known: Sequence[RankTimes], odd: Collection[int]) -> str:
    owns = sorted((row.own_s, row.rank) for row in known if row.own_s is not None)
    waits = sorted((row.wait_s, row.rank) for row in known if row.wait_s is not None and is_figure(row.wait_s))
    words = [f"Own compute of {len(known):,} ranks: {_range(owns)}."]
    words += [f"Wait: {_range(waits)}."] if waits else []
    named = sorted(row.rank for row in known if row.rank in odd)[:_NAMED]
    words += [f"Stands out: rank {', '.join(map(str, named))}."] if named else []
    return " ".join(words)


def _range(sorted_times: Sequence[tuple[float, int]]) -> str:
    (least_s, first), (most_s, last) = sorted_times[0], sorted_times[-1]
    return f"from {duration(least_s)} (rank {first}) to {duration(most_s)} (rank {last})"
