"""Time and reason of the program's end: the pure part of stopping."""

from __future__ import annotations


class StopPlan:
    """Several requests, one kill time: the earliest wins with its reason, and nothing ever lengthens it."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.kill_at_ns: int | None = None
        self.is_terminating = False

    @property
    def is_requested(self) -> bool:
        return self.kill_at_ns is not None

    def ask(self, reason: str, kill_at_ns: int, *, is_terminating: bool = True) -> bool:
        """Add a request and return whether the plan changed. ``is_terminating``: SIGTERM now; it cannot be
        taken back.
        """
        gains_signal = is_terminating and not self.is_terminating
        self.is_terminating = self.is_terminating or is_terminating
        if self.kill_at_ns is not None and kill_at_ns >= self.kill_at_ns:
            return gains_signal
        self.reason = reason
        self.kill_at_ns = kill_at_ns
        return True

    def is_kill_due(self, now_ns: int) -> bool:
        return self.kill_at_ns is not None and now_ns >= self.kill_at_ns
