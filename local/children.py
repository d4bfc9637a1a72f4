"""The stack's own processes: each dies with this process, has its log, and is started again when it ends by itself."""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from local.processes import ServerProcess

STOP_PATIENCE_S: Final = 10.0
RESTART_PAUSES_S: Final = (0.2, 1.0, 3.0, 10.0)
STEADY_S: Final = 30.0
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Child:
    """One process of the stack, by the arguments of the ``muster`` command."""

    name: str
    arguments: Sequence[str]
    variables: Mapping[str, str]
    log_path: Path
    python: str = sys.executable
    _process: ServerProcess | None = None
    _started_at: float = 0.0
    _restarts: int = 0
    _next_start: float = field(default=0.0)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    @property
    def how_it_ended(self) -> str | None:
        """Text on the end of a process that has ended by itself; None for one that runs or was never started."""
        if self._process is None or self._process.is_running():
            return None
        return _exit_words(self._process.exit_status)

    def start(self) -> None:
        self._started_at = time.monotonic()
        self._process = ServerProcess(
            [self.python, "-m", "muster", *self.arguments],
            owner=None,
            death_signal=signal.SIGTERM,
            log_path=self.log_path,
            working_dir=Path.cwd(),
            variables=self.variables,
        )

    def keep(self) -> str | None:
        """Start it again when it has ended, with growing pauses. Return a sentence when it has just ended."""
        process = self._process
        if process is None:
            if time.monotonic() >= self._next_start:
                self.start()
            return None
        if process.is_running():
            if time.monotonic() - self._started_at > STEADY_S:
                self._restarts = 0
            return None
        pause_s = RESTART_PAUSES_S[min(self._restarts, len(RESTART_PAUSES_S) - 1)]
        self._restarts += 1
        self._process, self._next_start = None, time.monotonic() + pause_s
        return f"{self.name} ended ({_exit_words(process.exit_status)}); starting it again. Its log: {self.log_path}"

    def stop(self) -> None:
        if self._process is not None:
            self._process.end((signal.SIGTERM, STOP_PATIENCE_S))
            self._process = None


def _exit_words(status: int | None) -> str:
    if status is None:
        return "unknown"
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"


def child_environment(**values: str | int | Path) -> dict[str, str]:
    """Return a child's settings as ``MUSTER_`` variables, without inherited ones."""
    settings = {f"MUSTER_{name.upper()}": str(value) for name, value in values.items()}
    return {"PYTHONUNBUFFERED": "1", "PATH": os.environ.get("PATH", os.defpath), **settings}
