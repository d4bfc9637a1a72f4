"""A sketch of how values are spread: its percentiles are at most one per cent off, and sketches merge exactly.

It is DDSketch (Masson, Rim, Lee: DDSketch, VLDB 2019) without a limit on the number of buckets. Values between two
powers of ``GAMMA`` share a bucket, so a bucket's middle differs from each of its values by at most ``ERROR`` of it:

    bucket i    GAMMA ** (i - 1) < value <= GAMMA ** i
    its middle  2 * GAMMA ** i / (GAMMA + 1)

Seconds from a microsecond to a year are 1,571 buckets at most; one job has some dozens. Two sketches merge by
adding the counts of equal buckets, so the order of merging does not matter, and nothing is lost by it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

ERROR: Final = 0.01
GAMMA: Final = (1 + ERROR) / (1 - ERROR)
LOG_GAMMA: Final = math.log(GAMMA)
LEAST: Final = 1e-9
"""Values below it count as 0."""
ZERO: Final = -100_000
"""The bucket of 0, below the bucket of any other value."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Counts of values by bucket, in order of bucket, each above 0; the least and the greatest value."""

    buckets: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    least: float = math.inf
    most: float = -math.inf

    @property
    def num(self) -> int:
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """Return the value below which ``share`` of the values lie, 0 to 1; None without values."""
        if not 0 <= share <= 1:
            raise ValueError(f"a share of {share} is not from 0 to 1")
        if not self.counts:
            return None
        rank, before = math.floor(share * (self.num - 1)), 0
        for bucket, count in zip(self.buckets, self.counts, strict=True):
            before += count
            if before > rank:
                return min(max(middle_of(bucket), self.least), self.most)
        raise AssertionError("a rank is below the number of values")


def middle_of(bucket: int) -> float:
    """Return the value that stands for all of the bucket."""
    return 0.0 if bucket == ZERO else math.exp(bucket * LOG_GAMMA) * 2 / (GAMMA + 1)


def sketch_of(values: Sequence[float] | npt.NDArray[np.float64]) -> Sketch:
    """Return the sketch of values of 0 or more. Raises ``ValueError``."""
    found = np.asarray(values, dtype=np.float64)
    is_value = (found >= 0) & (found < math.inf)
    if not is_value.all():
        raise ValueError(f"{found[~is_value][0]} is no finite value of 0 or more")
    if not len(found):
        return Sketch()
    buckets = np.full(len(found), ZERO)
    is_above = found >= LEAST
    buckets[is_above] = np.ceil(np.log(found[is_above]) / LOG_GAMMA)
    each, counts = np.unique(buckets, return_counts=True)
    return Sketch(tuple(each.tolist()), tuple(counts.tolist()), float(found.min()), float(found.max()))


def merged(sketches: Iterable[Sketch]) -> Sketch:
    """Return the sketch of all values of these sketches."""
    counts: dict[int, int] = {}
    least, most = math.inf, -math.inf
    for one in sketches:
        for bucket, count in zip(one.buckets, one.counts, strict=True):
            counts[bucket] = counts.get(bucket, 0) + count
        least, most = min(least, one.least), max(most, one.most)
    buckets = tuple(sorted(counts))
    return Sketch(buckets, tuple(counts[bucket] for bucket in buckets), least, most)
