"""Robust statistics of ranks: their peers by place, the peers' median, and the distance from it in noise widths."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")
NORMAL_WIDTH: Final = 1.4826
"""The median distance from the median times this is the standard deviation of normal noise."""
LEAST_WIDTH: Final = 0.01
"""Floor of the noise, as a share of the median: few values that are equal by chance have a distance of 0."""
LARGEST: Final = 1e15
"""Larger values are no figures: a program may report any number, and their squares would overflow."""
LARGE_GROUP: Final = 32
"""In a larger group one rank hardly moves the median, so all its ranks share one."""


def is_figure(value: float | None) -> bool:
    """Return whether a reported value can be a figure."""
    return value is not None and math.isfinite(value) and abs(value) <= LARGEST


def figures_in(values: Iterable[float | None]) -> list[float]:
    """Return the values that can be figures."""
    return [value for value in values if value is not None and is_figure(value)]


def width_of(values: Sequence[float], *, floor: float = LEAST_WIDTH) -> float:
    """Return the width of the noise in ``values``, at least ``floor`` of their median; 0 without values."""
    if not values:
        return 0.0
    middle = statistics.median(values)
    distance = statistics.median(abs(value - middle) for value in values)
    return max(NORMAL_WIDTH * distance, floor * abs(middle))


@dataclass(frozen=True, slots=True)
class Peers:
    """The values of a rank's peers: their median and the width of their noise."""

    median: float
    width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Peers":
        """Summarise at least one value."""
        return cls(statistics.median(values), width_of(values))

    def z(self, value: float) -> float:
        """Return the signed distance of ``value`` in widths; infinite if all peers are 0 and the value is not."""
        distance = value - self.median
        if distance == 0:
            return 0.0
        return distance / self.width if self.width > 0 else math.copysign(math.inf, distance)


def by_place(known: Mapping[int, T], places: Mapping[int, str]) -> list[dict[int, T]]:
    """Return what is known of the ranks of each place."""
    groups: dict[str, dict[int, T]] = {}
    for rank, value in known.items():
        groups.setdefault(places.get(rank, ""), {})[rank] = value
    return list(groups.values())


def peers_of_each(group: Mapping[int, float]) -> dict[int, Peers]:
    """Return the peers of each rank of a group of two or more: the others, or in a large group all ranks."""
    if len(group) > LARGE_GROUP:
        return dict.fromkeys(group, Peers.of(list(group.values())))
    return {rank: Peers.of([value for other, value in group.items() if other != rank]) for rank in group}
