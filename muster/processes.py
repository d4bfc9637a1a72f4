"""The common behaviour of every long-running process: stop on a signal, and keep its loops alive."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from muster.domain.errors import MusterError

FAULT_PAUSE_S: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1
_log = structlog.get_logger(__name__)


def stop_on_signals(*more: signal.Signals) -> threading.Event:
    """Return an event that SIGTERM, SIGINT and ``more`` set. Call this in the main thread."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, *more):
        signal.signal(number, lambda *_: stop.set())
    return stop


def end_with_parent(parent_pid: int) -> None:
    """End this process with the one that started it, from now on. Only Linux can: elsewhere it stays.

    The kernel's signal follows the parent's thread that forked; that one must live as long as this process should.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the line above
        raise SystemExit("the parent process has ended")


@dataclass(frozen=True, slots=True)
class Loop:
    """``body`` runs until ``stop`` is set; when it raises, that is logged, and it runs again after a pause."""

    name: str
    body: Callable[[threading.Event], None]


def run_loops(loops: Sequence[Loop], stop: threading.Event) -> None:
    """Each loop in a thread of its own, until ``stop``. A thread never ends by a fault of its body."""
    threads = [threading.Thread(target=_keep, args=(loop, stop), name=loop.name, daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    while not stop.wait(0.5):
        pass
    deadline = time.monotonic() + 5
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _keep(loop: Loop, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            loop.body(stop)
        except MusterError as error:
            _log.warning("loop_pauses", loop=loop.name, fault=error.detail)
        except Exception:  # noqa: BLE001  # a process's edge: said with its trace, then tried again
            _log.exception("loop_failed", loop=loop.name)
        stop.wait(FAULT_PAUSE_S)
