"""The spread of a figure over the ranks of a job: how far they are apart, and which rank stands alone.

A rank is compared with the other ranks of its place alone (pipeline stage and tensor index), since different stages
have different work. With fewer than three ranks at a place none stands alone: of two, either may be the odd one.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muster.domain.robust import by_place, is_figure, peers_of_each, width_of

LEAST_RANKS: Final = 3
ODD_Z: Final = 4.0
"""A rank is odd from so many widths of its peers' noise on."""
ODD_SHARE: Final = 0.1
"""It also differs from their median by at least so much of it: a narrow spread is no fault."""


class Figure(StrEnum):
    """Figures that each rank has."""

    MFU = "mfu"
    STEP = "step_s"
    OWN = "own_s"
    WAIT = "wait_s"
    COLLECTIVE = "collective_s"
    DATA = "data_s"
    TOKENS = "tokens_per_step"
    MEMORY = "memory_mib"
    UTILISATION = "utilisation"
    POWER = "power_w"
    CLOCK = "clock_mhz"
    TEMPERATURE = "temperature_c"


HIGH_IS_WORSE: Final = frozenset({Figure.STEP, Figure.OWN, Figure.DATA, Figure.TEMPERATURE})
LOW_IS_WORSE: Final = frozenset({Figure.MFU, Figure.WAIT, Figure.COLLECTIVE, Figure.UTILISATION, Figure.CLOCK})
"""A small wait is the sign of a rank for which the others wait. The remaining figures have no worse side."""


@dataclass(frozen=True, slots=True)
class OddRank:
    """A rank whose figure is far from its peers'.

    ``usual``: their median. ``z``: the signed distance in widths of their noise. ``is_worse``: the figure is on the
    side of a slow rank; false for a figure that has no such side.
    """

    rank: int
    value: float
    usual: float
    z: float
    is_worse: bool

    @property
    def ratio(self) -> float | None:
        """The value over the usual one; None where that is 0."""
        return self.value / self.usual if self.usual else None


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the ranks that have it.

    ``lowest`` and ``highest``: (value, rank). ``variation``: the standard deviation over the mean; None where the mean
    is 0. ``width``: of the noise, by the median distance from the median, as a share of the median; None where that is
    0. ``odd``: the ranks that stand alone, the farthest first.
    """

    figure: Figure
    num_ranks: int
    median: float
    lowest: tuple[float, int]
    highest: tuple[float, int]
    variation: float | None
    width: float | None
    odd: tuple[OddRank, ...]


def spread(
    figures: Mapping[Figure, Mapping[int, float | None]], places: Mapping[int, str] | None = None
) -> tuple[Spread, ...]:
    """Return the spread of each figure that two ranks or more have, in the order of ``Figure``.

    ``figures``: rank → value of each figure; a value may be None. ``places``: rank → its place in the mesh; a rank
    without one is at the empty place.
    """
    found = (spread_of(figure, figures[figure], places) for figure in Figure if figure in figures)
    return tuple(each for each in found if each is not None)


def spread_of(
    figure: Figure, by_rank: Mapping[int, float | None], places: Mapping[int, str] | None = None
) -> Spread | None:
    """Return the spread of one figure; None if fewer than two ranks have it."""
    known = {rank: value for rank, value in sorted(by_rank.items()) if value is not None and is_figure(value)}
    if len(known) < 2:
        return None
    values = list(known.values())
    mean, middle = statistics.fmean(values), statistics.median(values)
    odd = sorted(_odd(figure, known, places or {}), key=lambda each: (-abs(each.z), each.rank))
    return Spread(
        figure,
        len(known),
        middle,
        min((value, rank) for rank, value in known.items()),
        max((value, rank) for rank, value in known.items()),
        statistics.pstdev(values) / abs(mean) if mean else None,
        width_of(values, floor=0.0) / abs(middle) if middle else None,
        tuple(odd),
    )


def _odd(figure: Figure, known: Mapping[int, float], places: Mapping[int, str]) -> Iterator[OddRank]:
    for group in by_place(known, places):
        if len(group) < LEAST_RANKS:
            continue
        for rank, peers in peers_of_each(group).items():
            value = group[rank]
            distance = abs(value - peers.median)
            if distance > ODD_SHARE * abs(peers.median) and abs(peers.z(value)) >= ODD_Z:
                is_worse = figure in (HIGH_IS_WORSE if value > peers.median else LOW_IS_WORSE)
                yield OddRank(rank, value, peers.median, peers.z(value), is_worse)


def odd_ranks(spreads: tuple[Spread, ...]) -> dict[int, tuple[Figure, ...]]:
    """Return the figures by which each odd rank stands alone on its worse side."""
    found: dict[int, list[Figure]] = {}
    for each in spreads:
        for odd in each.odd:
            if odd.is_worse:
                found.setdefault(odd.rank, []).append(each.figure)
    return {rank: tuple(figures) for rank, figures in sorted(found.items())}
