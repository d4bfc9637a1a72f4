"""Downsampling to one point a step: gauges by their mean, counters by their last value, flags by bitwise or."""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from muster.domain.gpu.metrics import Kind

Points = list[float | None]
_DIGITS: Final = 7
"""Decimal digits that float32 holds."""


def downsample(kind: Kind, bins: npt.NDArray[np.int64], values: npt.NDArray[Any], num_bins: int) -> Points:
    """Return a point a bin, None where it has none. Samples are in order of time; ``bins`` has the bin of each."""
    is_there = np.isfinite(values)
    bins, values = bins[is_there], values[is_there].astype(np.float64)
    counts = np.bincount(bins, minlength=num_bins)
    if kind == "gauge":
        points = np.bincount(bins, weights=values, minlength=num_bins) / np.maximum(counts, 1)
    elif kind == "counter":
        points = np.zeros(num_bins)
        points[bins] = values
    else:
        masks = np.zeros(num_bins, dtype=np.int64)
        np.bitwise_or.at(masks, bins, values.astype(np.int64))
        points = masks.astype(np.float64)
    return [_rounded(point) if count else None for point, count in zip(points.tolist(), counts.tolist(), strict=True)]


def _rounded(value: float) -> float:
    if value == 0:
        return 0.0
    return round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))
