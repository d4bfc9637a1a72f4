"""Training messages of ranks, over a Unix socket: JSON lines, stored on disk until the control plane has them.

Each line goes into ``train.jsonl`` with the time at which it was read and the rank that its connection's hello named.
A rank that floods loses lines beyond the cap, counted; no rank is blocked for longer than one of our turns, and none
can stop us. Lines that the control plane has are released, so the cap bounds the unsent lines, and not how long a job
may run: the file's beginning becomes a hole, which costs no disk, and offsets stay what they were.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from pathlib import Path

from workers.host.supervisor import files, kernel
from workers.host.supervisor.user.redaction import Redactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

MOST_CONNECTIONS = 1_024
LONGEST_LINE = 64 << 10
MOST_BYTES = 64 << 20
"""Most bytes that wait for the control plane."""
REGAIN_PAUSE_NS = 1_000_000_000
KEPT_BYTES = 16 << 20
"""Part of it for rare messages: a long run's steps must not crowd out the message of a checkpoint."""
_FREQUENT_KINDS = ("step", "pace")
_READ_BYTES = 64 << 10
_READS_A_TURN = 64


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _peer_pid(channel: socket.socket) -> int:
    """Return the pid that connected, as the kernel reports it; 0 if it is no process of this namespace."""
    pid, _, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)


class _Connection:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pid = _peer_pid(channel)
        self.kept = bytearray()
        self.rank: int | None = None


class TrainSocket:
    """Socket that is polled like a stream: ``descriptor`` is readable when a rank connects or sends."""

    def __init__(self, folder: Path, path: Path, own_ranks: Container[int], redactor: Redactor | None = None) -> None:
        """Open the socket. ``own_ranks``: the ranks of this host. ``redactor``: for their messages.

        Raises:
            OSError: the socket or the file cannot be made.
        """
        self._own_ranks = own_ranks
        self._redactor = redactor or Redactor()
        self.path = path
        self.is_open = True
        self.dropped_lines = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen(MOST_CONNECTIONS)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / files.TRAIN, flags, 0o600)
        self._folder = folder
        self._size = os.fstat(self._file).st_size
        self._let_go = 0
        self._regained_ns = 0
        self._ranks: dict[int, _Connection] = {}
        self._poll = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._poll.register(self._listener, select.EPOLLIN)
        self._last_words: dict[str, bytes] = {}

    @property
    def descriptor(self) -> int:
        return self._poll.fileno()

    @property
    def listeners(self) -> set[int]:
        """The processes that are connected, and receive our messages."""
        return {connection.pid for connection in self._ranks.values()}

    def pump(self) -> None:
        """Read what is there, a bounded amount."""
        for _ in range(_READS_A_TURN):
            ready = self._poll.poll(0)
            if not ready:
                return
            for number, _ in ready:
                if number == self._listener.fileno():
                    self._accept()
                else:
                    self._read(number)

    def report(self, message: dict[str, object]) -> None:
        """Send one line to every rank, and the newest of its type to each that connects later: it may be importing."""
        word = json.dumps(message).encode() + b"\n"
        self._last_words[str(message.get("type"))] = word
        for number in tuple(self._ranks):
            self._send(number, word)

    def close(self) -> None:
        """Close after the end of all ranks: their remaining lines are read first."""
        if not self.is_open:
            return
        self.pump()
        self.is_open = False
        for number in tuple(self._ranks):
            self._leave(number)
        self._poll.close()
        self._listener.close()
        os.close(self._file)

    def _accept(self) -> None:
        try:
            rank, _ = self._listener.accept()
        except OSError:
            return
        if len(self._ranks) >= MOST_CONNECTIONS:
            rank.close()
            return
        rank.setblocking(False)
        self._ranks[rank.fileno()] = _Connection(rank)
        self._poll.register(rank, select.EPOLLIN)
        for word in self._last_words.values():
            self._send(rank.fileno(), word)

    def _send(self, number: int, word: bytes) -> None:
        """Send a line; a rank that does not read it still gets the signal."""
        try:
            self._ranks[number].channel.send(word)
        except OSError:
            return

    def _read(self, number: int) -> None:
        connection = self._ranks[number]
        try:
            content = connection.channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:
            self._leave(number)
            return
        *lines, rest = bytes(connection.kept + content).split(b"\n")
        connection.kept[:] = rest[:LONGEST_LINE]
        for line in lines:
            self._keep(connection, line)

    def _leave(self, number: int) -> None:
        connection = self._ranks.pop(number)
        self._poll.unregister(connection.channel)
        connection.channel.close()

    def _keep(self, connection: _Connection, line: bytes) -> None:
        """Store a line if it is one JSON object: a torn or foreign line must not stop readers of the file."""
        try:
            message = json.loads(line, parse_constant=_refuse) if len(line) <= LONGEST_LINE else None
        except (ValueError, RecursionError):  # a rank's message must not end its supervisor, however deep it nests
            message = None
        if not isinstance(message, dict):
            self.dropped_lines += 1
            return
        if message.get("type") == "hello" and message.get("rank") in self._own_ranks:
            connection.rank = int(message["rank"])
        said = self._redactor.document(message)
        content = json.dumps({"at_ms": files.wall_ms(), "rank": connection.rank, "message": said}).encode() + b"\n"
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
