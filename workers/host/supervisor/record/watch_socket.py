"""The newest progress and stacks of this host's ranks, as their sensors report them (``muster.train.watch.sensor``).

Progress goes into ``sensors/progress.json`` at most once a second, a stack into ``sensors/stack-RANK.json``. Both files
are replaced whole and not synchronised: after a crash of the host there is nothing to watch.
"""

from __future__ import annotations

import time
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.record.rank_socket import Connection, RankSocket
from workers.host.supervisor.user.redaction import Redactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any

WRITE_EVERY_NS = 1_000_000_000
_STACK_EVERY_NS = 200_000_000
"""A rank may state a stack so often: it answers requests, and must not fill a disk's queue by itself."""
LONGEST_WORD = 256
_OF_PROGRESS = ("phase", "step", "ticks", "is_declared", "moves")
_OF_HELLO = ("world_size", "stack_signal", "stack_file")
_OF_A_STACK = ("id", "frames", "collectives")


class WatchSocket(RankSocket):
    """Socket of the sensors. ``turn``: call it often; it writes what has changed."""

    def __init__(self, folder: Path, path: Path, own_ranks: Container[int], redactor: Redactor | None = None) -> None:
        super().__init__(path, own_ranks)
        self._folder = folder / files.SENSORS
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._redactor = redactor or Redactor()
        self._progress: dict[int, dict[str, Any]] = {}
        self._stack_ns: dict[int, int] = {}
        self._has_changed = False
        self._written_ns = 0

    def take(self, connection: Connection, message: dict[str, Any]) -> None:
        rank, kind = connection.rank, message.get("type")
        if rank is None:
            return
        if kind == "hello":
            self._progress[rank] = {"pid": connection.pid, **_plain(_chosen(message, _OF_HELLO))}
        elif kind == "progress":
            self._note_progress(rank, _plain(_chosen(message, _OF_PROGRESS)))
        elif kind == "stack" and time.monotonic_ns() - self._stack_ns.get(rank, 0) >= _STACK_EVERY_NS:
            self._stack_ns[rank] = time.monotonic_ns()
            stack = self._redactor.document(_chosen(message, _OF_A_STACK))
            self._write(f"stack-{rank}.json", {"at_ms": files.wall_ms(), "stack": stack})

    def turn(self) -> None:
        """Write the ranks' progress if it has changed and was not written within the last second."""
        now_ns = time.monotonic_ns()
        if self._has_changed and now_ns - self._written_ns >= WRITE_EVERY_NS:
            self._has_changed, self._written_ns = False, now_ns
            self._write("progress.json", {"ranks": {str(rank): reported for rank, reported in self._progress.items()}})

    def _note_progress(self, rank: int, reported: dict[str, Any]) -> None:
        known = self._progress.setdefault(rank, {})
        now_ns = time.monotonic_ns()
        if any(known.get(name) != reported.get(name) for name in ("phase", "step", "ticks")):
            known["changed_ns"] = now_ns
        if known.get("moves") != reported.get("moves"):
            known["moved_ns"] = now_ns
        known.update(reported)
        self._has_changed = True

    def _write(self, name: str, document: dict[str, Any]) -> None:
        try:
            files.replace_json(self._folder / name, document)
        except (OSError, ValueError, RecursionError):
            return  # such as a full disk: the watch then sees no progress, and nothing else depends on it


def _chosen(message: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: message[name] for name in names if name in message}


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that hold a number, a truth value or a short text, as each field of these messages does."""
    return {
        name: value
        for name, value in message.items()
        if isinstance(value, int) or (isinstance(value, str) and len(value) <= LONGEST_WORD)
    }
