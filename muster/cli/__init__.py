"""The ``muster`` command. Each command imports only its own modules."""

import gc
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130
GARBAGE_AFTER: Final = 10_000
"""New objects until garbage is collected, in place of Python's 700: an import makes 100,000 objects and no garbage."""


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback at any moment, also while modules are still being
    imported.
    """
    gc.set_threshold(GARBAGE_AFTER)
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:  # a script's background command ignores it, and so does this one
        signal.signal(signal.SIGINT, _leave)
    from muster.cli.framework.app import run

    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = _caught(run)
    if is_ours:
        signal.signal(signal.SIGINT, _leave)
    gc.freeze()  # else the interpreter's end walks through every object again
    sys.exit(code)


def _caught(run: Callable[[], int]) -> int:
    """Return the exit code of ``run``, which reports its own faults; a second Ctrl-C meanwhile is caught here."""
    try:
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


__all__ = ["main"]
