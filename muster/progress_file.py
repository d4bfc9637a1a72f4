"""A file whose age shows how long ago all loops of a process advanced: for health checks where there is no database."""

import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from muster.progress import Progress

_log = structlog.get_logger(__name__)


class ProgressFile:
    """The file at ``path``, which one process marks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_marked = True

    def report(self, beats: Sequence[Progress]) -> None:
        """Mark the file unless a loop stands still. A disk that takes no mark fails the check, and nothing else."""
        if any(beat.is_stalled for beat in beats):
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
        except OSError as error:
            if self._is_marked:
                _log.warning("progress_not_marked", path=str(self._path), fault=error.strerror)
            self._is_marked = False
        else:
            self._is_marked = True


def marked_s_ago(path: Path) -> float | None:
    """Return the age of the mark; None: there is none."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None
