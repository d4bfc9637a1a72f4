"""Wait for files that are not visible yet: a shared file system may show late what another host wrote.

A wrong checksum counts at once. Only a missing file is read again, since it may become visible.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TypeVar

from muster.train.checkpoint.manifest import UnusableError

if TYPE_CHECKING:
    from collections.abc import Callable

LATE_ON_SHARED_S = 60.0
"""An NFS client uses its cache of a folder for up to ``acdirmax``, which is 60 s by default (nfs(5), "Data and metadata
coherence").
"""
LATE_ELSEWHERE_S = 5.0
"""Longer than a mount may be invisible for a moment. A host's own disk, and an object store, hide nothing."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0

T = TypeVar("T")


class GivenUpError(Exception):
    """The wait was ended: whether the file appears is not known."""


class LateFiles:
    """One round of waiting: all missing files have until ``late_s`` after the first one that was missing."""

    def __init__(self, late_s: float, wait: Callable[[float], bool] | None = None) -> None:
        """Begin a round. ``wait``: waits so many seconds and returns whether to give up; None: never give up."""
        self._late_s = late_s
        self._wait = wait or _slept
        self._until: float | None = None

    def read(self, read_once: Callable[[], T]) -> T:
        """Return the result of ``read_once`` after it misses no file.

        Raises:
            UnusableError: as ``read_once``; for a missing file, after it has been waited for long enough.
            GivenUpError: during the wait.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return read_once()
            except UnusableError as fault:
                if not fault.is_missing or not self._has_time(fault):
                    raise
            if self._wait(pause_s):
                raise GivenUpError
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _has_time(self, fault: UnusableError) -> bool:
        """Return whether there is time to wait; the job's log names the missing file once."""
        if self._until is None:
            self._until = time.monotonic() + self._late_s
            sys.stderr.write(f"muster.train: {fault}; it may show late: waiting up to {self._late_s:g} s\n")
        return time.monotonic() < self._until


def _slept(seconds: float) -> bool:
    time.sleep(seconds)
    return False
