"""The meeting of the ranks: a wait inside torch that lets no signal handler run, so a thread watches for a stop."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING

from muster.train.runtime.exit_codes import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from muster.train.runtime.orders import Orders

_POLL_S = 0.2
_OTHERS_COME_S = 5.0
"""Time for other ranks to arrive: if all are there, they have met long before and stop at their first agreement."""
_MET = 0


@contextlib.contextmanager
def joining(orders: Orders, leave: Callable[[str], object]) -> Iterator[None]:
    """Watch for a stop during the meeting: a rank that does not meet the others soon after it ends; there is nothing to
    save.

    ``leave`` gets the reason, ends the process and is called in another thread.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False) if is_main else -1
    watcher = threading.Thread(target=_watch, args=(reads, orders, leave), name="muster-joining", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        if is_main:
            signal.set_wakeup_fd(before)
        os.write(writes, bytes([_MET]))
        watcher.join()
        os.close(reads)
        os.close(writes)


def _watch(reads: int, orders: Orders, leave: Callable[[str], object]) -> None:
    """Watch the pipe into which Python writes the number of each signal that it handles, wherever the main
    thread is.
    """
    leaves_at: float | None = None
    while True:
        ready, _, _ = select.select([reads], [], [], _POLL_S)
        heard = os.read(reads, 4096) if ready else b""
        if _MET in heard:
            return
        if signal.SIGTERM in heard:
            orders.note_signal()
        orders.listen()
        if orders.stop_reason is None:
            continue
        now = time.monotonic()
        soon_s = min(_OTHERS_COME_S, patience_s(orders.deadline_ms) / 2)
        leaves_at = now + soon_s if leaves_at is None else min(leaves_at, now + soon_s)
        if now >= leaves_at:
            leave(orders.stop_reason)
