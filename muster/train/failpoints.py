"""For tests and drills: places where a rank can be made to die or fail. Off unless ``MUSTER_TRAIN_FAILPOINT`` is set.

``NAME`` dies there as by kill -9; ``NAME=ENOSPC`` raises that OSError; ``@2`` after either means the second time only.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections import Counter

ENVIRONMENT = "MUSTER_TRAIN_FAILPOINT"
_ARMING = re.compile(r"(?P<name>[a-z._]+)(=(?P<error>E[A-Z0-9]+))?(@(?P<hit>[1-9]\d*))?")
_hits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Raises OSError where one is armed here."""
    armed = _ARMING.fullmatch(os.environ.get(ENVIRONMENT, ""))
    if armed is None or armed["name"] != name:
        return
    _hits[name] += 1
    if armed["hit"] is not None and _hits[name] != int(armed["hit"]):
        return
    if armed["error"] is None:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    number = getattr(errno, armed["error"])
    raise OSError(number, os.strerror(number))
