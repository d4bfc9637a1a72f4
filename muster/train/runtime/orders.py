"""Orders that a rank received by its supervisor's lines and by SIGTERM. They are stored here; ``Run`` acts
at a step.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.train.report.wire import Channel

NO_DEADLINE_MS = 1 << 53


class Orders:
    """Orders to one rank.

    ``deadline_ms`` (Unix) is the time of the kill; without one there is all the time that a save takes. ``pins``:
    generations to be retained, until ``Run`` has taken them from here.
    """

    def __init__(self, channel: Channel, stop_notice_s: float | None) -> None:
        self.stop_reason: str | None = None
        self.wants_checkpoint = False
        self.pins: list[str] | None = None
        self._channel = channel
        self._stop_notice_s = stop_notice_s
        self._reported_deadline_ms: int | None = None
        self._signalled_at_ms: int | None = None

    def watch_signals(self) -> None:
        """Handle SIGTERM from now on. Only the main thread of a program can set a handler."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.note_signal)

    @property
    def deadline_ms(self) -> int:
        if self._reported_deadline_ms is not None:
            return self._reported_deadline_ms
        if self._signalled_at_ms is None or self._stop_notice_s is None:
            return NO_DEADLINE_MS
        return min(NO_DEADLINE_MS, self._signalled_at_ms + round(self._stop_notice_s * 1000))

    def listen(self) -> None:
        for message in self._channel.receive():
            if message.get("type") == "stop":
                self.stop_reason = str(message.get("reason"))
                self._note_deadline(message.get("deadline_unix_ms"))
            elif message.get("type") == "checkpoint_now":
                self.wants_checkpoint = True
            elif message.get("type") == "pins" and isinstance(names := message.get("generations"), list):
                self.pins = [name for name in names if isinstance(name, str)]

    def _note_deadline(self, deadline_ms: object) -> None:
        """Store the earliest deadline: nothing lengthens a notice."""
        if isinstance(deadline_ms, int):
            before = NO_DEADLINE_MS if self._reported_deadline_ms is None else self._reported_deadline_ms
            self._reported_deadline_ms = max(0, min(before, deadline_ms))

    def note_signal(self, *_: object) -> None:
        """Record SIGTERM and do no work in the handler: the ranks' next agreement sees it."""
        self.stop_reason = self.stop_reason or "SIGTERM"
        self._signalled_at_ms = self._signalled_at_ms or time.time_ns() // 1_000_000
