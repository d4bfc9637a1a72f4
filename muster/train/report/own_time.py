"""Own compute of this rank: a step's time without the waits for other ranks.

Steps that are not like the others are left out: the first one, and steps that evaluate, compile or save within. If most
steps of a program evaluate, evaluating is part of its usual steps, and they count.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from muster.train.report.host_signals import HostSignals
from muster.train.report.waits import WAITS
from muster.train.watch.activity import ACTIVITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.train.report.waits import Span
    from muster.train.runtime.devices import Device

_FORGETS: Final = 0.9
_MOST: Final = 0.5


class Measured:
    """The waits of one step: within it, and between the step before and it. None: they could not be measured."""

    __slots__ = ("between", "is_plain", "within")

    def __init__(self, between: list[Span] | None, within: list[Span] | None, *, is_plain: bool) -> None:
        self.between, self.within, self.is_plain = between, within, is_plain


class OwnTime:
    """Own compute and waits, summed over the plain steps since the last report."""

    def __init__(self, device: Device, place: str) -> None:
        self._device = device
        self._place = place
        self._signals = HostSignals()
        self._is_watching = False
        self._sees_exchanges = True
        self._between: list[Span] | None = []
        self._is_plain = False
        self._has_stepped = False
        self._odd_share = 0.0
        self._counts = (0, 0, 0)
        self._own_s = self._wait_s = 0.0
        self._num_own = self._num_all = 0

    def watch(self, *, sees_exchanges: bool) -> None:
        """Measure, until ``leave``. ``sees_exchanges``: the part ``collective`` of a step is a wait."""
        self._sees_exchanges = sees_exchanges
        self._is_watching = True
        self._signals.watch()
        WAITS.watch(self._device)

    def leave(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._signals.leave()
            WAITS.leave()

    def begin(self) -> None:
        """Begin a step."""
        self._between = WAITS.enter_step()
        self._counts = _counts()
        self._is_plain = self._has_stepped
        self._has_stepped = True

    def end(self) -> Measured:
        """End a step."""
        WAITS.is_covered = False
        is_plain = self._is_plain and self._counts == _counts()
        self._odd_share = _FORGETS * self._odd_share + (1 - _FORGETS) * (not is_plain)
        return Measured(self._between, WAITS.take(), is_plain=is_plain or self._odd_share > _MOST)

    def add(self, measured: Measured, taken: Sequence[tuple[str, float]]) -> None:
        """Add a step that the device has passed. ``taken``: its parts with their seconds. Raises as the device does."""
        self._num_all += 1
        if not measured.is_plain or measured.between is None or measured.within is None:
            return
        within_s, between_s = self._seconds(measured.within), self._seconds(measured.between)
        step_s = sum(seconds for part, seconds in taken if part != "checkpoint")
        if self._sees_exchanges:
            within_s += sum(seconds for part, seconds in taken if part == "collective")
        self._own_s += max(step_s - within_s, 0.0)
        self._wait_s += within_s + between_s
        self._num_own += 1

    def word(self) -> dict[str, float | int | str]:
        """Return means over the plain steps since the last call; without own compute if there was none."""
        num_own, num_all = self._num_own, self._num_all
        own_s, wait_s = self._own_s, self._wait_s
        self._own_s = self._wait_s = 0.0
        self._num_own = self._num_all = 0
        if not self._is_watching:
            return {}
        found: dict[str, float | int | str] = {**self._signals.word(num_all)}
        if self._place:
            found["place"] = self._place
        if num_own:
            found |= {
                "own_s": round(own_s / num_own, 6),
                "wait_s": round(wait_s / num_own, 6),
                "own_steps": num_own,
            }
        return found

    def _seconds(self, spans: Sequence[Span]) -> float:
        return sum(max(self._device.seconds(began, ended), 0.0) for began, ended in spans)


def _counts() -> tuple[int, int, int]:
    """Return counts of this process that grow in a step that is not like the others."""
    return ACTIVITY.num_pauses, ACTIVITY.num_evaluations, _num_compiled()


def _num_compiled() -> int:
    """Return how many functions torch has compiled, without importing its compiler."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    frames = None if counters is None else counters.get("frames")
    return 0 if frames is None else int(frames.get("total", 0))
