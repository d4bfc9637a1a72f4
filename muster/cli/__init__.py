"""The ``muster`` command. Each command loads only its own room."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130


def main() -> None:
    """The entry point. Ctrl-C ends it without a trace at any moment, also while modules are still being loaded."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:  # a script's background command ignores it, and so do we
        signal.signal(signal.SIGINT, _leave)
    from muster.cli.framework.app import run

    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = _caught(run)
    if is_ours:
        signal.signal(signal.SIGINT, _leave)
    sys.exit(code)


def _caught(run: Callable[[], int]) -> int:
    """``run`` says its own faults; what is left is a second Ctrl-C while it did so."""
    try:
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


__all__ = ["main"]
