"""Spikes of the loss and of the gradient norm: values far above the newest ones, by robust statistics.

The median of the newest values and the median deviation from it do not move with a few wild values, as a mean does.
Values above 0 are compared by their logarithm, so the rule is the same for a loss of 10 and of 0.01::

    loss      2.31  2.28  2.33  2.30  9.75        deviations of the logarithm: 0.01, and 1.44
    verdict                           spike       more than 8 robust deviations, and more than twice the median

A spike is reported and stops nothing. Only spikes without an end (``PERSISTENT``) are a fault of values, under a rule
that rolls back. After so many the new level is the usual one.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW = 64
WARM_UP = 32
"""Values before the first verdict: a loss falls fast as training begins."""
DEVIATIONS = 8.0
PERSISTENT = 50
_TO_SIGMA = 1.4826
_LEAST_FACTOR = {"loss": 2.0, "grad_norm": 4.0}
_LEAST_SPREAD = 0.02
_NONE = -(1 << 63)
_ALL_BITS = (1 << 63) - 1


@dataclass(frozen=True)
class Spike:
    """A spike of ``what`` at ``step``. ``usual``: the median before.

    ``length``: spikes in a row up to this one; ``onset``: the step of the first of them. Values between them may be
    missing, since a program need not report one each step.
    """

    what: str
    step: int
    value: float
    usual: float
    length: int
    onset: int

    def __str__(self) -> str:
        words = {"loss": "the loss", "grad_norm": "the gradient norm"}[self.what]
        return f"{words} is {self.value:.4g} at step {self.step}, and was {self.usual:.4g} before"


class Series:
    """Newest values of one figure, without its spikes.

    ``length``, ``onset``: spikes of the row that has not ended, and the step of its first one; None: there is none.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._least_factor = _LEAST_FACTOR[what]
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._wild: deque[float] = deque(maxlen=PERSISTENT)
        self.length = 0
        self.onset: int | None = None

    def note(self, step: int, value: float) -> Spike | None:
        """Record a finite value. Return the spike if it is one."""
        usual = self._usual_if_spike(value)
        if usual is None:
            self._values.append(value)
            self.end_row()
            return None
        onset = step if self.onset is None else self.onset
        self._wild.append(value)
        self.length, self.onset = self.length + 1, onset
        spike = Spike(self._what, step, value, usual, self.length, onset)
        if self.length >= PERSISTENT:
            self._values.clear()
            self._values.extend(self._wild)
            self.end_row()
        return spike

    def end_row(self) -> None:
        """End the row of spikes: the next one begins another."""
        self._wild.clear()
        self.length, self.onset = 0, None

    def _usual_if_spike(self, value: float) -> float | None:
        if len(self._values) < WARM_UP:
            return None
        ordered = sorted(self._values)
        usual = _middle(ordered)
        if value <= usual:
            return None
        if ordered[0] > 0:
            if value <= usual * self._least_factor:
                return None
            center = math.log(usual)
            spread = _middle(sorted(abs(math.log(each) - center) for each in ordered))
            excess, least = math.log(value) - center, math.log(self._least_factor)
            bound = max(DEVIATIONS * _TO_SIGMA * max(spread, _LEAST_SPREAD), least)
        else:
            spread = _middle(sorted(abs(each - usual) for each in ordered))
            excess, bound = value - usual, DEVIATIONS * _TO_SIGMA * max(spread, _LEAST_SPREAD * abs(usual), 1e-9)
        return usual if excess > bound else None


def _middle(ordered: Sequence[float]) -> float:
    """Return the median of values in order."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Spikes:
    """Spikes of all ranks together: of the highest loss and the highest gradient norm of a step.

    All ranks get the same values and so find the same spikes. ``last_step``: of the newest spike; -1: there was none.
    """

    def __init__(self) -> None:
        self.last_step = -1
        self._series = {what: Series(what) for what in ("loss", "grad_norm")}

    @property
    def onset(self) -> int | None:
        """The step of the first spike of the rows that have not ended; None: there is none.

        A usual value ends its own row alone: a program may report the norm at each step, and the loss seldom.
        """
        return min((each.onset for each in self._series.values() if each.onset is not None), default=None)

    @staticmethod
    def figures(loss: float | None, norm: float | None) -> list[int]:
        """Return this rank's figures of a step, of which all ranks take the highest."""
        return [_as_integer(loss), _as_integer(norm)]

    def agree(self, step: int, highest: list[int]) -> list[Spike]:
        """Return the spikes of a step."""
        found = []
        for series, figure in zip(self._series.values(), highest, strict=True):
            value = _as_float(figure)
            if value is not None and (spike := series.note(step, value)) is not None:
                found.append(spike)
        if found:
            self.last_step = step
        return found

    def forget(self, step: int) -> None:
        """Forget the spikes after ``step``, whose state is restored."""
        for series in self._series.values():
            series.end_row()
        self.last_step = min(self.last_step, step)


def _as_integer(value: float | None) -> int:
    """Return an integer in the order of the values; the lowest for none, and for one that is not finite."""
    if value is None or not math.isfinite(value):
        return _NONE
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits) if bits >= 0 else int(bits) ^ _ALL_BITS


def _as_float(figure: int) -> float | None:
    if figure == _NONE:
        return None
    (value,) = struct.unpack("<d", struct.pack("<q", figure if figure >= 0 else figure ^ _ALL_BITS))
    return float(value)
