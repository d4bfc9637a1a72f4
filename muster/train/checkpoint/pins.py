"""Generations that somebody wants kept. The mark in the store is the truth that retention goes by.

A mark survives without a server: ``muster ckpt``, a run of its own and the next attempt find it there.
What the control plane wishes comes with the order and while the job runs; rank 0 makes it a mark, and says so.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.retention import PINNED_BY_CONTROL_PLANE, PINS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from muster.train.checkpoint.storage.stores import Store
    from muster.train.report.wire import Channel


class Pins:
    """``wished`` None: the control plane has said nothing, and what it once marked stays."""

    def __init__(self, store: Store, channel: Channel, wished: frozenset[str] | None) -> None:
        self._store = store
        self._channel = channel
        self._lock = threading.Lock()
        self._wished = wished
        self._told: dict[str, bool] = {}

    def wish(self, names: Iterable[str]) -> None:
        """Counts at once, for retention here; ``carry`` makes it last."""
        with self._lock:
            self._wished = frozenset(names)
            self._told = {}  # who wishes anew wants to hear of each

    def held(self) -> frozenset[str]:
        """All that must stay. Raises OSError: then nothing may be removed, since nobody knows."""
        with self._lock:
            wished = self._wished or frozenset()
        return wished.union(*(self._store.pinned_ones(mark) for mark in PINS))

    def carry(self) -> bool:
        """The marks as they are wished, each told once. False: not all could be made or taken away now."""
        with self._lock:
            wished, told = self._wished, self._told
        if wished is None:
            return True
        try:
            marked = self._store.pinned_ones(PINNED_BY_CONTROL_PLANE)
            there = {generation.name for generation in self._store.list_generations()}
        except OSError:
            return False
        is_done = True
        for name in sorted((marked - wished) | (wished & there)):  # one that fails keeps no other from it
            is_pinned = name in wished
            if is_pinned is not (name in marked) and not self._change(name, is_pinned=is_pinned):
                is_done = False
            elif told.get(name) is not is_pinned:
                told[name] = is_pinned
                self._channel.say("checkpoint_pinned", generation=name, is_pinned=is_pinned)
        return is_done

    def _change(self, name: str, *, is_pinned: bool) -> bool:
        change = self._store.pin if is_pinned else self._store.unpin
        try:
            change(_named(name), PINNED_BY_CONTROL_PLANE)
        except OSError:
            return False
        return True


def _named(name: str) -> Generation:
    found = Generation.named(name)
    if found is None:
        raise AssertionError(f"{name} came from a list of generations")
    return found
