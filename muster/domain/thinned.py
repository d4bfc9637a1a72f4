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
        """Return the series with the new points that fall on the stride, or itself where none does.

        ``reported``: as they came. A step that is not after the last one is done again after a rollback: it takes the
        place of its point and of all points behind it.
        """
        points, stride = list(self.points), self.stride
        for point in reported:
            while points and points[-1][0] >= point[0]:
                points.pop()
            if point[0] % stride == 0 or not points:
                points.append(point)
        if tuple(points) == self.points:
            return self
        while len(points) > MOST_POINTS:
            stride *= 2
            points = [points[0], *(point for point in points[1:] if point[0] % stride == 0)]
        return Thinned(stride, tuple(points))
