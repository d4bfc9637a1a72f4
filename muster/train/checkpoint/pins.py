"""Pinned generations. Retention follows the marks in the store.

A mark survives without a server: ``muster ckpt``, a run of its own and the next attempt find it there.
The control plane's pins arrive with the order and while the job runs; rank 0 turns them into marks and reports them.
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
    """Pins of one job. ``requested`` None: the control plane has stated none, and its earlier marks stay."""

    def __init__(self, store: Store, channel: Channel, requested: frozenset[str] | None) -> None:
        self._store = store
        self._channel = channel
        self._lock = threading.Lock()
        self._requested = requested
        self._reported: dict[str, bool] = {}

    def request(self, names: Iterable[str]) -> None:
        """Set the control plane's pins. They count at once for retention here; ``carry`` makes them durable."""
        with self._lock:
            self._requested = frozenset(names)
            self._reported = {}  # a new request gets a report for each pin

    def pinned(self) -> frozenset[str]:
        """Return all names that must stay. Raises OSError: then nothing may be removed, since the marks are unknown."""
        with self._lock:
            wished = self._requested or frozenset()
        return wished.union(*(self._store.pinned_ones(mark) for mark in PINS))

    def carry(self) -> bool:
        """Set the marks as requested and report each once. Returns False if a mark could not be made or removed now."""
        with self._lock:
            wished, told = self._requested, self._reported
        if wished is None:
            return True
        try:
            marked = self._store.pinned_ones(PINNED_BY_CONTROL_PLANE)
            there = {generation.name for generation in self._store.list_generations()}
        except OSError:
            return False
        is_done = True
        for name in sorted((marked - wished) | (wished & there)):  # one that fails does not stop the others
            is_pinned = name in wished
            if is_pinned is not (name in marked) and not self._change(name, is_pinned=is_pinned):
                is_done = False
            elif told.get(name) is not is_pinned:
                told[name] = is_pinned
                self._channel.send("checkpoint_pinned", generation=name, is_pinned=is_pinned)
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
