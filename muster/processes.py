"""The common behaviour of every long-running process: stop on a signal, and keep its loops alive.

A loop that stands still or has ended is worse than a process that ends, because a service manager starts an ended
process again. So the main thread watches the progress of each loop, and ends the process when a vital loop has none.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from muster import service_manager
from muster.domain.errors import MusterError
from muster.progress import STALLED_S, Progress, WatchedStop, bound

FAULT_PAUSE_S: Final = 1.0
CHECK_S: Final = 0.5
"""Interval at which the main thread checks the loops."""
NOTIFY_S: Final = 5.0
"""Interval of words to the service manager; a third of the units' WatchdogSec at most."""
EXIT_LOOP_DEAD: Final = 70
"""Exit code of a process whose loop stands still or has ended: EX_SOFTWARE of sysexits.h."""
LAST_LINE_S: Final = 1.0
"""Longest time that the last line of an ending process may take."""
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
    """``body`` runs until ``stop`` is set; when it raises, that is logged, and it runs again after a pause.

    ``is_vital``: a standstill of this loop ends the process. ``stalled_s``: the age of its progress that is one.
    """

    name: str
    body: Callable[[threading.Event], None]
    is_vital: bool = True
    stalled_s: float = STALLED_S


class Runs(Protocol):
    """The runner of a loop: a thread, or an object that knows one."""

    def is_alive(self) -> bool: ...


@dataclass(slots=True)
class Watched:
    """A loop's progress, and its thread."""

    progress: Progress
    thread: Runs
    is_reported: bool = False


def start_loop(loop: Loop, stop: threading.Event) -> tuple[Watched, threading.Thread]:
    """Start the loop in a thread of its own, which ends with ``stop`` and by no fault of the loop's body."""
    progress = Progress(loop.name, limit_s=loop.stalled_s, is_vital=loop.is_vital)
    thread = threading.Thread(target=_keep, args=(loop, stop, progress), name=loop.name, daemon=True)
    thread.start()
    return Watched(progress, thread), thread


def run_loops(
    loops: Sequence[Loop], stop: threading.Event, *, report: Callable[[Sequence[Progress]], None] | None = None
) -> None:
    """Run each loop in a thread of its own, until ``stop``. ``report`` gets their progress, in a loop of its own.

    A vital loop that stands still, or any loop whose thread has ended, ends the process with ``EXIT_LOOP_DEAD``.
    """
    started = [start_loop(loop, stop) for loop in loops]
    if report is not None:
        started.append(start_loop(reporter(report, [each.progress for each, _ in started]), stop))
    service_manager.notify(service_manager.READY)
    watch_until(stop, [watched for watched, _ in started])
    service_manager.notify(service_manager.ENDING)
    deadline = time.monotonic() + 5
    for _, thread in started:
        thread.join(max(0.0, deadline - time.monotonic()))


def watch_until(stop: threading.Event, watched: Sequence[Watched]) -> None:
    """Look at the loops until ``stop``."""
    watch = Watch(watched)
    while not stop.wait(CHECK_S):
        watch.check()


def reporter(report: Callable[[Sequence[Progress]], None], beats: Sequence[Progress]) -> Loop:
    """Return the loop that reports. It is not vital: a process that works unseen is better than none."""

    def body(stop: threading.Event) -> None:
        while not stop.is_set():
            report(beats)
            stop.wait(NOTIFY_S)

    return Loop("progress", body, is_vital=False)


@dataclass(slots=True)
class Watch:
    """The check of a process's loops. One thread uses it. ``end`` ends the process; it is replaced in tests."""

    watched: Sequence[Watched]
    clock: Callable[[], float] = time.monotonic
    end: Callable[[str], None] = field(default_factory=lambda: end_process)
    _checked_s: float = field(init=False)
    _notified_s: float = float("-inf")

    def __post_init__(self) -> None:
        self._checked_s = self.clock()

    def check(self) -> None:
        """End the process if a loop is dead; else report to the service manager that it works."""
        now_s = self.clock()
        stood_still_s, self._checked_s = now_s - self._checked_s - CHECK_S, now_s
        if stood_still_s > NOTIFY_S:  # stopped or starved as a whole: that is no fault of one loop
            _log.warning("process_stood_still", seconds=round(stood_still_s, 1))
            for each in self.watched:
                each.progress.resume()
        for each in self.watched:
            self._judge(each)
        if now_s - self._notified_s >= NOTIFY_S:
            self._notified_s = now_s
            service_manager.notify(service_manager.WORKING)

    def _judge(self, watched: Watched) -> None:
        progress = watched.progress
        if not watched.thread.is_alive():
            self.end(f"the thread of the loop {progress.name} has ended")
        elif not progress.is_stalled:
            watched.is_reported = False
        elif progress.is_vital:
            self.end(f"the loop {progress.name} has not advanced for {progress.age_s:.0f} s")
        elif not watched.is_reported:
            watched.is_reported = True
            _log.error("loop_stalled", loop=progress.name, age_s=round(progress.age_s, 1))


def state_waiting(why: str) -> None:
    """Report to the service manager that this process works and waits, before it has loops that could advance."""
    service_manager.notify(service_manager.READY, service_manager.WORKING, f"STATUS={why}")


def end_process(why: str) -> None:
    """End this process at once, with its exit code and a sentence: a loop that hangs would not let it end in order."""
    try:
        service_manager.notify(service_manager.ENDING, f"STATUS={why}")
        timer = threading.Timer(LAST_LINE_S, os._exit, (EXIT_LOOP_DEAD,))
        timer.daemon = True
        timer.start()  # a log device whose reader has stopped would take the line below never
        _log.critical("process_ends", why=why, exit_code=EXIT_LOOP_DEAD)
    finally:
        os._exit(EXIT_LOOP_DEAD)


def _keep(loop: Loop, stop: threading.Event, progress: Progress) -> None:
    watched_stop = WatchedStop(stop, progress)
    with bound(progress):
        while not stop.is_set():
            progress.advance()
            try:
                loop.body(watched_stop)
            except MusterError as error:
                _log.warning("loop_pauses", loop=loop.name, fault=error.detail, cause=cause_of(error))
            except Exception:  # noqa: BLE001  # a process's edge: logged with its trace, then tried again
                _log.exception("loop_failed", loop=loop.name)
            watched_stop.wait(FAULT_PAUSE_S)


def cause_of(error: BaseException) -> str | None:
    """Return the first line of the error at the root of ``error``; None where it is the root itself."""
    root = error
    while (deeper := root.__cause__ or getattr(root, "orig", None)) is not None:
        root = deeper
    return None if root is error else next(iter(str(root).splitlines()), type(root).__name__)
