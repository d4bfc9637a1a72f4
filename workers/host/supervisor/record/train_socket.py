"""Training messages of ranks, over a Unix socket: JSON lines, stored on disk until the control plane has them.

Each line goes into ``train.jsonl`` with the time at which it was read and the rank that its connection's hello named.
A rank that floods loses lines beyond the cap, counted; no rank is blocked for longer than one of our turns, and none
can stop us. Lines that the control plane has are released, so the cap bounds the unsent lines, and not how long a job
may run: the file's beginning becomes a hole, which costs no disk, and offsets stay what they were.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from workers.host.supervisor import files, kernel
from workers.host.supervisor.record.rank_socket import Connection, RankSocket
from workers.host.supervisor.user.redaction import Redactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any

MOST_BYTES = 64 << 20
"""Most bytes that wait for the control plane."""
REGAIN_PAUSE_NS = 1_000_000_000
KEPT_BYTES = 16 << 20
"""Part of it for rare messages: a long run's steps must not crowd out the message of a checkpoint."""
OF_THE_HOST = ("stalled", "learnt")
"""Messages that this host adds itself."""
LONGEST_OUTCOME = 40
_FREQUENT_KINDS = ("step", "pace")


class TrainSocket(RankSocket):
    """Socket of the ranks' training messages, which go into ``train.jsonl``."""

    def __init__(self, folder: Path, path: Path, own_ranks: Container[int], redactor: Redactor | None = None) -> None:
        """Open the socket. ``own_ranks``: the ranks of this host. ``redactor``: for their messages.

        Raises:
            OSError: the socket or the file cannot be made.
        """
        super().__init__(path, own_ranks)
        self._redactor = redactor or Redactor()
        self.outcomes: dict[int, str] = {}
        """By rank: the outcome that its newest process reported, as its cause or its word."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / files.TRAIN, flags, 0o600)
        self._folder = folder
        self._size = os.fstat(self._file).st_size
        self._let_go = 0
        self._regained_ns = 0

    def close(self) -> None:
        if self.is_open:
            super().close()
            os.close(self._file)

    def take(self, connection: Connection, message: dict[str, Any]) -> None:
        """Store a message of a rank. A rank may not speak in the host's name."""
        if message.get("type") in OF_THE_HOST:
            self.dropped_lines += 1
            return
        if connection.rank is not None and message.get("type") == "hello":
            self.outcomes.pop(connection.rank, None)  # of a process before this one
        said = self.store(message, connection.rank)
        if message.get("type") == "outcome" and connection.rank is not None:
            self._note_outcome(connection.rank, said)

    def store(self, message: dict[str, Any], rank: int | None) -> dict[str, Any]:
        """Store a message, and return it as it is stored. ``rank`` None: it is this host's own, or of no rank that has
        sent its hello.
        """
        redacted = {name: self._redactor.document(value) for name, value in message.items()}
        self._write(redacted, rank)
        return redacted

    def _write(self, message: dict[str, Any], rank: int | None) -> None:
        content = json.dumps({"at_ms": files.wall_ms(), "rank": rank, "message": message}).encode() + b"\n"
        kept_bytes = KEPT_BYTES if message.get("type") in _FREQUENT_KINDS else 0
        if len(content) + kept_bytes > self._room() or self._room() < MOST_BYTES // 2:
            self._regain()
        if len(content) + kept_bytes > self._room():
            self.dropped_lines += 1
            return
        try:
            written = os.write(self._file, content)
        except OSError:
            written = 0
        self._size += written
        self.dropped_lines += written != len(content)

    def _note_outcome(self, rank: int, message: Any) -> None:
        word = message.get("cause") or message.get("exit")
        if isinstance(word, str) and word.isidentifier() and len(word) <= LONGEST_OUTCOME:
            self.outcomes[rank] = word

    def _room(self) -> int:
        return MOST_BYTES - (self._size - self._let_go)

    def _regain(self) -> None:
        """Release the lines that the control plane has. If no hole can be made, the file stays as it is, and
        bounded.
        """
        if time.monotonic_ns() - self._regained_ns < REGAIN_PAUSE_NS:
            return
        self._regained_ns = time.monotonic_ns()
        told = files.read_json(self._folder / files.RELAYED) or {}
        relayed = told.get(files.RELAYED_TRAINING)
        if isinstance(relayed, int) and self._let_go < relayed <= self._size and kernel.let_go(self._file, relayed):
            self._let_go = relayed
