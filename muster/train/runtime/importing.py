"""Handling of a stop while a rank's program still imports and builds: it ends at once, since there is nothing to save.

This holds from the first import of ``muster.train`` until ``start``, which handles the signal from then on. Meanwhile
the program may run Python, or wait inside torch, where no handler runs: so a thread watches for the signal as well.

It holds in the rank itself alone. A process that the rank starts inherits ``MUSTER_TRAIN_RANK_PID`` and sees that it is
not the rank; a fork of the rank gets the default action back. A program's own handler stays in place.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

from muster.train.parallel.foreign_launchers import take_rank
from muster.train.report.wire import Channel
from muster.train.runtime.exit_codes import leave_before_start

_RANK_PID: Final = "MUSTER_TRAIN_RANK_PID"
_LAUNCHED: Final = ("RANK", "WORLD_SIZE")
_WHY: Final = "SIGTERM before train.start"
_OVER: Final = 0


class _Heed(threading.local):
    """Block of SIGTERM around a fork: without it the signal would be lost, or end the parent instead.

    A fork receives SIGTERM only after it has the default action back.
    """

    before: set[int] | None = None

    def block(self) -> None:
        if _importing is not None:
            self.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock(self) -> None:
        before, self.before = self.before, None
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Importing:
    """Handler that ends this process with exit code 76 on SIGTERM, from ``watch`` to ``end``, and reports it."""

    def __init__(self) -> None:
        self._leaving = threading.Lock()
        self._is_over = False
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._writes, False)
        self._watcher = threading.Thread(target=self._watch, name="muster-importing", daemon=True)

    def watch(self) -> None:
        """Start to handle SIGTERM. Call it in the main thread."""
        self._watcher.start()
        os.register_at_fork(before=_heed.block, after_in_parent=_heed.unblock, after_in_child=_leave_to_parent)
        signal.signal(signal.SIGTERM, self._leave)
        signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)

    def end(self) -> None:
        """Stop handling SIGTERM, which ``start`` handles by now; outside the main thread it can have no handler."""
        self._is_over = True
        os.write(self._writes, bytes([_OVER]))
        self._watcher.join()
        if threading.current_thread() is threading.main_thread():
            self.forget()
            os.close(self._reads)
            os.close(self._writes)

    def forget(self) -> None:
        """Give SIGTERM its default action back, unless the program has set a handler of its own."""
        if self._is_handler():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        set_by_now = signal.set_wakeup_fd(-1)
        if set_by_now not in (-1, self._writes):  # the program's own
            signal.set_wakeup_fd(set_by_now)

    def _watch(self) -> None:
        """Read the number of each signal from the pipe, and leave on SIGTERM.

        Python writes the number of every signal that it handles into the pipe, wherever the main thread is. This
        includes a signal that the program handles itself by now, which ``Importing`` ignores.
        """
        while _OVER not in (heard := os.read(self._reads, 4096)):
            if signal.SIGTERM in heard and self._is_handler() and not self._is_over:
                self._leave()

    def _is_handler(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._leave

    def _leave(self, *_: object) -> None:
        if self._is_over:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        if not self._leaving.acquire(blocking=False):  # the other thread does it
            return
        channel = Channel(os.environ.get("MUSTER_TRAIN_SOCKET"))
        rank, world_size = (int(os.environ[name]) for name in _LAUNCHED)
        channel.send("hello", rank=rank, world_size=world_size, pid=os.getpid())
        leave_before_start(channel, _WHY)


_importing: Importing | None = None
_heed = _Heed()


def _leave_to_parent() -> None:
    global _importing
    importing, _importing = _importing, None
    if importing is not None:
        importing.forget()
    _heed.unblock()


def begin() -> None:
    """Watch for SIGTERM if this process is a rank that a launcher has started and SIGTERM has its default action."""
    global _importing  # noqa: PLW0603  # one process, one program that imports
    take_rank(os.environ)
    is_rank = all(os.environ.get(name, "").isdecimal() for name in _LAUNCHED)
    is_first = os.environ.setdefault(_RANK_PID, str(os.getpid())) == str(os.getpid()) if is_rank else False
    is_main = threading.current_thread() is threading.main_thread()
    if is_first and is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _importing = Importing()
        _importing.watch()


def end() -> None:
    """``start`` has come."""
    global _importing
    if _importing is not None:
        ended, _importing = _importing, None
        ended.end()
