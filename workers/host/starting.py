"""Start of supervisors: one that waits with a warm torchrun if there is one, else a new process."""

from pathlib import Path
from typing import Final

import structlog

from workers.host import supervisor
from workers.host.attempt_folder import boottime_ms

FIRST_PAUSE_MS: Final = 1_000
NEXT_PAUSE_MS: Final = 5_000
"""Pause before the next warm-up: importing torch takes a core for a second or more, not while a program starts."""
_LOG: Final = "standby.log"
_log = structlog.get_logger(__name__)


class Starter:
    """Starter of supervisors. At most one waits, for the next attempt."""

    def __init__(self, state_dir: Path, python: str, *, is_warm: bool) -> None:
        self._python = python
        self._log_path = state_dir / _LOG
        self._is_warm = is_warm
        self._waiting: supervisor.WaitingSupervisor | None = None
        self._prepare_at_ms = boottime_ms() + FIRST_PAUSE_MS

    def start(self, attempt_dir: Path) -> None:
        """Start a supervisor. Raises OSError if the host cannot start processes."""
        waiting, self._waiting = self._waiting, None
        self._prepare_at_ms = boottime_ms() + NEXT_PAUSE_MS
        if waiting is None or not waiting.take(attempt_dir):
            supervisor.spawn_supervisor(attempt_dir)

    def pause_ms(self) -> int | None:
        """Return the milliseconds until ``prepare`` has work; None if it has none before the next start."""
        if not self._is_warm or self._waiting is not None:
            return None
        return max(0, self._prepare_at_ms - boottime_ms())

    def prepare(self) -> None:
        """Start a waiting supervisor, if it is time."""
        if self.pause_ms() != 0:
            return
        self._prepare_at_ms = boottime_ms() + NEXT_PAUSE_MS
        try:
            self._waiting = supervisor.WaitingSupervisor(self._python, self._log_path)
        except OSError as fault:
            _log.warning("no_warm_start", fault=str(fault))

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None
