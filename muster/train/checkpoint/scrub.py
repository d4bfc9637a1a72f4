"""Older generations are read again, slowly: damage is to be found while there is another, not when this one is needed.

On rank 0, in a thread beside training; at most so many bytes a second, and none while a save is under way.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.train.checkpoint.manifest import UnusableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from muster.train.checkpoint.generations import Generation
    from muster.train.checkpoint.storage.stores import Store

_LONGEST_PAUSE_S = 60.0
_SHORTEST_PAUSE_S = 0.05
_LOOK_AT_SAVE_S = 0.02
_LONGEST_WAIT_S = 1.0
_SECOND_READING_S = 5.0
"""Longer than a mount or a name is out of sight for a moment."""


@dataclass(frozen=True)
class ScrubRule:
    """Each generation that is kept is read again ``interval_s`` after it was written or read last; 0: never."""

    interval_s: float = 86_400.0
    bytes_per_s: float = 50e6


class Stopped(Exception):  # noqa: N818  # no fault: who reads is to leave
    """The program ends."""


class Throttle:
    """``spent`` is told of each piece that was read, and returns when the next may be."""

    def __init__(
        self,
        bytes_per_s: float,
        stop: threading.Event,
        is_busy: Callable[[], bool],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """``is_busy``: something more urgent uses the same disk or network. ``meanwhile``: what is not to wait for it.

        ``meanwhile`` raises nothing: it would be taken for a fault of what is being read.
        """
        self._bytes_per_s = bytes_per_s
        self._stop = stop
        self._is_busy = is_busy
        self._meanwhile = meanwhile

    def spent(self, num_bytes: int) -> None:
        """Raises Stopped."""
        self.rest(num_bytes / self._bytes_per_s)

    def rest(self, pause_s: float) -> None:
        """So long, and for as long as something is more urgent. Raises Stopped."""
        until = time.monotonic() + pause_s
        while True:
            self._meanwhile()
            left_s = until - time.monotonic()
            if self._stop.wait(max(0.0, min(left_s, _LONGEST_WAIT_S))):
                raise Stopped
            if left_s > _LONGEST_WAIT_S:
                continue
            if not self._is_busy():
                return
            until = time.monotonic() + _LOOK_AT_SAVE_S


class Scrub:
    """Which generation is due, and what a reading of it says.

    When an earlier attempt read it last is marked in the store; without a mark it is due by when it was written.
    """

    def __init__(
        self, store: Store, rule: ScrubRule, throttle: Throttle, *, second_reading_s: float = _SECOND_READING_S
    ) -> None:
        self._second_reading_s = second_reading_s
        self._store = store
        self._rule = rule
        self._throttle = throttle
        self._read_unix_s: dict[Generation, float] = {}

    def note_read(self, generation: Generation) -> None:
        """It was read back just now, by whoever needed to."""
        self._read_unix_s[generation] = time.time()

    @property
    def pause_s(self) -> float:
        """How often to look whether one is due."""
        return max(_SHORTEST_PAUSE_S, min(self._rule.interval_s / 10, _LONGEST_PAUSE_S)) if self._is_on else 3600.0

    @property
    def _is_on(self) -> bool:
        return self._rule.interval_s > 0

    def due(self, passed_over: frozenset[str]) -> Generation | None:
        """The one that was read the longest ago, if that is long enough. Raises OSError: the store does not answer."""
        if not self._is_on:
            return None
        found = [each for each in self._store.list_generations() if each.name not in passed_over]
        self._learn(found)
        oldest = min(found, key=self._read_unix_s.__getitem__, default=None)
        is_due = oldest is not None and self._read_unix_s[oldest] + self._rule.interval_s <= time.time()
        return oldest if is_due else None

    def _learn(self, found: list[Generation]) -> None:
        """Of those that this attempt has not read itself. Raises OSError."""
        unknown = [generation for generation in found if generation not in self._read_unix_s]
        marked = self._store.read_ones() if unknown else {}
        for generation in unknown:
            try:
                written = self._store.read_manifest(generation).committed_at_unix_ms / 1000
            except (UnusableError, OSError):
                self._read_unix_s[generation] = 0.0  # to be read now, which says what is wrong with it
                continue
            self._read_unix_s[generation] = max(written, min(marked.get(generation.name, 0.0), time.time()))

    def fault_of(self, generation: Generation) -> UnusableError | OSError | None:
        """None: it is as it was saved. Damage counts once a second reading, some seconds later, finds it too.

        Raises Stopped.
        """
        fault = self._read(generation)
        if isinstance(fault, UnusableError) and (fault.is_damage or fault.is_missing):
            self._throttle.rest(self._second_reading_s)
            fault = self._read(generation)
        self.note_read(generation)
        return fault

    def _read(self, generation: Generation) -> UnusableError | OSError | None:
        try:
            self._throttle.spent(0)
            self._store.verify(generation, self._throttle.spent)
        except UnusableError as fault:
            return self._in_sight(generation, fault) if fault.is_missing else fault
        except OSError as fault:
            return fault
        return None

    def _in_sight(self, generation: Generation, fault: UnusableError) -> UnusableError | OSError:
        """A missing file is lost only where the manifest still is: removal begins there, and a mount takes it along."""
        try:
            self._store.read_manifest(generation)
        except (UnusableError, OSError):
            return UnusableError(str(fault), is_damage=False, is_missing=True)
        return fault

    def is_there(self, generation: Generation) -> bool:
        """Whether the store still lists it. Raises OSError."""
        return generation in self._store.list_generations()
