"""Slow re-reading of older generations, which finds damage while there is another one, not when this one is needed.

It runs on rank 0, in a background thread; at most so many bytes a second, and not while a save is in progress.
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
_CHECK_SAVE_S = 0.02
_LONGEST_WAIT_S = 1.0
_SECOND_READING_S = 5.0
"""Longer than a mount or a name may be invisible for a moment."""


@dataclass(frozen=True)
class ScrubRule:
    """Rule for scrubs: each stored generation is read again ``interval_s`` after it was written or read
    last; 0: never.
    """

    interval_s: float = 86_400.0
    bytes_per_s: float = 50e6


class Stopped(Exception):  # noqa: N818  # no fault: the reading thread has to end
    """The program ends."""


class Throttle:
    """Limit on the read rate: ``spent`` is called for each piece that was read, and returns when the next
    may be read.
    """

    def __init__(
        self,
        bytes_per_s: float,
        stop: threading.Event,
        is_busy: Callable[[], bool],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up the limit. ``is_busy``: something more urgent uses the same disk or network.

        ``meanwhile``: work that must not wait for it. It raises nothing: an exception would be treated as a fault of
        the file that is being read.
        """
        self._bytes_per_s = bytes_per_s
        self._stop = stop
        self._is_busy = is_busy
        self._meanwhile = meanwhile

    def spent(self, num_bytes: int) -> None:
        """Wait after a piece of ``num_bytes``. Raises Stopped."""
        self.rest(num_bytes / self._bytes_per_s)

    def rest(self, pause_s: float) -> None:
        """Wait ``pause_s`` seconds, and for as long as something is more urgent. Raises Stopped."""
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
            until = time.monotonic() + _CHECK_SAVE_S


class Scrub:
    """Choice of the generation that is due, and its reading.

    The time of an earlier attempt's last reading is marked in the store; without a mark a generation is due by the time
    when it was written.
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
        """Record that a generation was read back just now."""
        self._read_unix_s[generation] = time.time()

    @property
    def pause_s(self) -> float:
        """Seconds between two checks whether a generation is due."""
        return max(_SHORTEST_PAUSE_S, min(self._rule.interval_s / 10, _LONGEST_PAUSE_S)) if self._is_on else 3600.0

    @property
    def _is_on(self) -> bool:
        return self._rule.interval_s > 0

    def due(self, passed_over: frozenset[str]) -> Generation | None:
        """Return the generation that was read the longest ago, if that is long enough. Raises OSError: the store does
        not answer.
        """
        if not self._is_on:
            return None
        found = [each for each in self._store.list_generations() if each.name not in passed_over]
        self._learn(found)
        oldest = min(found, key=self._read_unix_s.__getitem__, default=None)
        is_due = oldest is not None and self._read_unix_s[oldest] + self._rule.interval_s <= time.time()
        return oldest if is_due else None

    def _learn(self, found: list[Generation]) -> None:
        """Find when generations that this attempt has not read were read last. Raises OSError."""
        unknown = [generation for generation in found if generation not in self._read_unix_s]
        marked = self._store.read_ones() if unknown else {}
        for generation in unknown:
            try:
                written = self._store.read_manifest(generation).committed_at_unix_ms / 1000
            except (UnusableError, OSError):
                self._read_unix_s[generation] = 0.0  # due now: reading it shows the fault
                continue
            self._read_unix_s[generation] = max(written, min(marked.get(generation.name, 0.0), time.time()))

    def fault_of(self, generation: Generation) -> UnusableError | OSError | None:
        """Return a generation's fault; None: it is as it was saved. Damage counts if a second reading, seconds later,
        agrees.

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
        """Return the fault, as no damage if the manifest is not visible either.

        A missing file is lost only if the manifest is still there: a removal begins with the manifest, and a missing
        mount hides both.
        """
        try:
            self._store.read_manifest(generation)
        except (UnusableError, OSError):
            return UnusableError(str(fault), is_damage=False, is_missing=True)
        return fault

    def is_there(self, generation: Generation) -> bool:
        """Return whether the store still lists a generation. Raises OSError."""
        return generation in self._store.list_generations()
