"""A history that never grows past a bound: as it fills, every second point is given up, evenly over its whole length.

So the run of any length is seen from its first step on, at a resolution of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MOST_POINTS: Final = 128

Point = tuple[int, float | None, float | None]
"""Step, loss, and how long the step took in seconds."""


@dataclass(frozen=True, slots=True)
class Thinned:
    """``points`` by growing step, each a multiple of ``stride`` except for the first that there was."""

    stride: int = 1
    points: tuple[Point, ...] = ()

    def with_points(self, reported: Iterable[Point]) -> "Thinned":
        """Return the series with the new points that fall on the stride, or itself where none does."""
        last = self.points[-1][0] if self.points else -1
        fresh = []
        for point in sorted(reported, key=lambda each: each[0]):
            if point[0] > last and (point[0] % self.stride == 0 or last < 0):
                fresh.append(point)
                last = point[0]
        if not fresh:
            return self
        points, stride = (*self.points, *fresh), self.stride
        while len(points) > MOST_POINTS:
            stride *= 2
            points = (points[0], *(point for point in points[1:] if point[0] % stride == 0))
        return Thinned(stride, points)
