"""Whether a run's loss fell: its beginning is compared with its end, each by a median, since single losses jump.

A history of up to 128 points stands for the whole run (``muster.domain.thinned``). The first fifth of its losses is its
beginning, the last fifth its end. Fewer than ``FEWEST`` losses decide nothing.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from muster.domain.thinned import Point

FEWEST: Final = 10
_FIFTH: Final = 5
FELL: Final = "fell"
ROSE: Final = "rose"
DIVERGED: Final = "diverged"
UNCLEAR: Final = "unclear"


def outcome_of(points: Sequence[Point], *, is_diverged: bool = False) -> str:
    """Return the outcome of a run's losses, by growing step. ``is_diverged``: its last attempt ended by that cause."""
    losses = [loss for _, loss, _ in points if loss is not None]
    if is_diverged or (losses and not math.isfinite(losses[-1])):
        return DIVERGED
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < FEWEST:
        return UNCLEAR
    part = max(len(finite) // _FIFTH, 1)
    return FELL if median(finite[-part:]) < median(finite[:part]) else ROSE
