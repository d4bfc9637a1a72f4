"""Wires that lose, double, delay and reorder messages; they can be cut one way or both ways for a while."""

from collections.abc import Callable
from random import Random
from typing import Any

from simulator.world.kernel import Action, Kernel
from simulator.world.settings import Settings


class Wire:
    """One direction between two places. A wire with ``is_good`` false loses all messages for the whole history."""

    __slots__ = ("_duplication", "_is_good", "_kernel", "_loss", "_min_ms", "_random", "_tail_ms", "cut_until_ms")

    def __init__(self, kernel: Kernel, rng: Random, settings: Settings, *, is_good: bool = True) -> None:
        self.cut_until_ms = 0
        self._kernel = kernel
        self._random: Callable[[], float] = rng.random
        self._is_good = is_good
        self._loss, self._duplication = settings.loss if is_good else 1.0, settings.duplication
        self._min_ms, self._tail_ms = settings.min_delay_ms, settings.tail_delay_ms

    def send(self, action: Action, *args: Any) -> None:
        if self._kernel.now_ms < self.cut_until_ms or self._random() < self._loss:
            return
        self._kernel.after(self._delay_ms(), action, *args)
        if self._random() < self._duplication:
            self._kernel.after(self._delay_ms(), action, *args)

    def _delay_ms(self) -> int:
        """Return a delay: most messages are fast; the tail is long, and overtaking is common in it."""
        chance = self._random()
        chance *= chance
        return self._min_ms + int(self._tail_ms * chance * chance)

    def mend(self) -> None:
        """End all faults of the wire."""
        self.cut_until_ms, self._loss, self._duplication = 0, 0.0 if self._is_good else 1.0, 0.0
        self._tail_ms = min(self._tail_ms, 20)
