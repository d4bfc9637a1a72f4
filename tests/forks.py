"""What all forks that stand for a fresh interpreter have in common."""

import os
import signal
import sys
from collections.abc import Callable


def code_of(program: Callable[[], object]) -> int:
    """Return the exit code with which a fresh interpreter would end, after its report of an error."""
    try:
        program()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # as the interpreter would
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def wake_when_a_fork_ends() -> int:
    """Return a descriptor that is readable once a fork has ended: an idle server takes no time."""
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return woken


def forget_ended_forks() -> None:
    """Undo that in a fork."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
