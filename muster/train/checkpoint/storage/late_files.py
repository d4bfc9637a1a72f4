"""Patience with files that are not there yet: what another host wrote, a shared file system may show late.

A checksum that differs differs at once. A missing file alone is looked for again, since it may be on its way.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TypeVar

from muster.train.checkpoint.manifest import UnusableError

if TYPE_CHECKING:
    from collections.abc import Callable

LATE_ON_SHARED_S = 60.0
"""An NFS client goes by what it saw of a folder for up to ``acdirmax``, which is 60 s unless the mount says otherwise
(nfs(5), "Data and metadata coherence").
"""
LATE_ELSEWHERE_S = 5.0
"""Longer than a mount is out of sight for a moment. A host's own disk, and an object store, hide nothing."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0

T = TypeVar("T")


class GivenUpError(Exception):
    """Who waits was told to leave: whether the file comes is not known."""


class LateFiles:
    """One round of looking: all that is missing has until ``late_s`` after the first file that was."""

    def __init__(self, late_s: float, wait: Callable[[float], bool] | None = None) -> None:
        """``wait``: so many seconds, and whether to give up; None: nobody asks for that."""
        self._late_s = late_s
        self._wait = wait or _slept
        self._until: float | None = None

    def read(self, look: Callable[[], T]) -> T:
        """What ``look`` finds, once it misses no file.

        Raises:
            UnusableError: as ``look``; a missing file, once it has been looked for long enough.
            GivenUpError: while it was waited for.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return look()
            except UnusableError as fault:
                if not fault.is_missing or not self._has_time(fault):
                    raise
            if self._wait(pause_s):
                raise GivenUpError
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _has_time(self, fault: UnusableError) -> bool:
        """Says once what is waited for, in the job's log."""
        if self._until is None:
            self._until = time.monotonic() + self._late_s
            sys.stderr.write(f"muster.train: {fault}; it may show late: waiting up to {self._late_s:g} s\n")
        return time.monotonic() < self._until


def _slept(seconds: float) -> bool:
    time.sleep(seconds)
    return False
