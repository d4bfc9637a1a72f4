"""Exit codes by which a rank ends, and how long it may still wait before that if there is time left."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from muster.train.report.wire import Channel

EXIT_CORRUPTION: Final = 16
EXIT_DIVERGED: Final = 17
EXIT_SAVE_FAILED: Final = 74
EXIT_STOPPED_WITH_CHECKPOINT: Final = 75
EXIT_STOPPED_WITHOUT: Final = 76
EXIT_NEVER_RESTART: Final = 93
OUTCOME_CAUSES: Final = {
    EXIT_CORRUPTION: "corruption",
    EXIT_DIVERGED: "diverged",
    EXIT_SAVE_FAILED: "save_failed",
    EXIT_NEVER_RESTART: "superseded",
}
"""Cause in the outcome of a rank that ends with such a code: a program may end with it for its own reasons."""
_MOST_SETTLING_S = 3600.0
_LEAVING_S = 0.2


def leave_at_once(code: int) -> NoReturn:
    """End the process: printed text is flushed, and the interpreter's exit functions do not run."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def leave_before_start(channel: Channel, why: str) -> NoReturn:
    """End a rank that was asked to stop before it met the other ranks: there is nothing to save."""
    channel.send("outcome", exit="stopped_without", step=0, message=why, dropped_lines=channel.dropped_lines)
    channel.close()
    leave_at_once(EXIT_STOPPED_WITHOUT)


def patience_s(deadline_ms: int) -> float:
    """Return how long a rank may wait for a disk and still have time to end before the deadline."""
    return min(max(0.0, deadline_ms / 1000 - time.time() - _LEAVING_S), _MOST_SETTLING_S)
