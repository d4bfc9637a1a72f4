"""How a rank leaves where there is no time left, and how long it may still wait where there is some."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import NoReturn

_MOST_SETTLING_S = 3600.0
_LEAVING_S = 0.2


def leave_at_once(code: int) -> NoReturn:
    """With what was printed, and without what the interpreter does at its end."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def patience_s(deadline_ms: int) -> float:
    """How long may be waited for a disk, so that there is time to leave."""
    return min(max(0.0, deadline_ms / 1000 - time.time() - _LEAVING_S), _MOST_SETTLING_S)
