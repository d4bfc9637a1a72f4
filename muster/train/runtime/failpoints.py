"""Places where tests and drills can make a rank die or fail. They are off unless ``MUSTER_TRAIN_FAILPOINT`` is set.

``NAME`` dies there as by kill -9; ``NAME=ENOSPC`` raises that OSError; ``NAME~2.5`` takes so many seconds longer, as on
a slow disk; ``@2`` after any of them means the second time only.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections import Counter

ENVIRONMENT = "MUSTER_TRAIN_FAILPOINT"
_ARMING = re.compile(
    r"(?P<name>[a-z._]+)(=(?P<error>E[A-Z0-9]+)|~(?P<seconds>\d{1,4}(\.\d{1,3})?))?(@(?P<hit>[1-9]\d*))?"
)
_hits: Counter[str] = Counter()
_added: set[str] = set()


def arm(text: str) -> None:
    """Arm one more failpoint, in addition to the variable's, until ``disarm``."""
    _added.add(text)


def disarm(text: str) -> None:
    _added.discard(text)


def failpoint(name: str) -> None:
    """Die, wait or raise OSError if a failpoint of this name is armed."""
    for text in (os.environ.get(ENVIRONMENT, ""), *_added):
        armed = _ARMING.fullmatch(text)
        if armed is not None and armed["name"] == name:
            _meet(armed)


def _meet(armed: re.Match[str]) -> None:
    _hits[armed.string] += 1
    if armed["hit"] is not None and _hits[armed.string] != int(armed["hit"]):
        return
    if armed["seconds"] is not None:
        time.sleep(float(armed["seconds"]))
        return
    if armed["error"] is None:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    number = getattr(errno, armed["error"])
    raise OSError(number, os.strerror(number))
