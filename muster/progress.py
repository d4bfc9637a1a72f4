"""Progress of loops: when each last advanced, as against a thread that only exists.

A loop advances when it asks whether it has to stop, and with each answer of the database. A pause that it announces is
no standstill: its age counts from the end of the pause.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

STALLED_S: Final = 60.0
"""Age from which on a loop counts as stalled: twelve times the longest statement that the database permits."""


class Progress:
    """The progress of one loop. ``limit_s``: the age from which on it counts as stalled.

    ``is_vital``: the process is of no use without this loop, so a stall ends the process.
    """

    def __init__(
        self,
        name: str,
        *,
        limit_s: float = STALLED_S,
        is_vital: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.limit_s = limit_s
        self.is_vital = is_vital
        self.on_advance: Callable[[], None] | None = None
        """Called in the loop's own thread each time that it advances."""
        self._clock = clock
        self._advanced_s = clock()

    def advance(self) -> None:
        self._advanced_s = self._clock()
        if self.on_advance is not None:
            self.on_advance()

    def rest(self, pause_s: float) -> None:
        """Announce a pause of this length."""
        self._advanced_s = self._clock() + pause_s

    def resume(self) -> None:
        """Begin to count again after the whole process stood still: the age shows nothing about this loop alone."""
        self._advanced_s = max(self._advanced_s, self._clock())

    @property
    def age_s(self) -> float:
        return max(0.0, self._clock() - self._advanced_s)

    @property
    def is_stalled(self) -> bool:
        return self.age_s > self.limit_s


class _OfThread(threading.local):
    current: Progress | None = None


_OF_THREAD: Final = _OfThread()


@contextmanager
def bound(progress: Progress) -> Iterator[None]:
    """Let ``advance`` in this thread note the progress of this loop."""
    before, _OF_THREAD.current = _OF_THREAD.current, progress
    try:
        yield
    finally:
        _OF_THREAD.current = before


@contextmanager
def on_advance(called: Callable[[], None]) -> Iterator[None]:
    """Let ``called`` be called, in this thread, each time that its loop advances. In a thread of no loop: never."""
    current = _OF_THREAD.current
    if current is not None:
        current.on_advance = called
    try:
        yield
    finally:
        if current is not None:
            current.on_advance = None


def advance() -> None:
    """Note that the loop of this thread advances. In a thread of no loop this does nothing."""
    current = _OF_THREAD.current
    if current is not None:
        current.advance()


class WatchedStop(threading.Event):
    """A process's ``stop`` as one of its loops sees it: each question and each pause is progress of that loop."""

    def __init__(self, stop: threading.Event, progress: Progress) -> None:
        super().__init__()
        self._stop = stop
        self._progress = progress

    def is_set(self) -> bool:
        self._progress.advance()
        return self._stop.is_set()

    def set(self) -> None:
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        self._progress.rest(timeout if timeout is not None else float("inf"))
        is_stopped = self._stop.wait(timeout)
        self._progress.advance()
        return is_stopped
