"""A Unix socket on which the ranks of a host send JSON lines; no rank blocks us, and none is blocked for long."""

from __future__ import annotations

import json
import select
import socket
import struct
from abc import ABC, abstractmethod
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any

MOST_CONNECTIONS = 1_024
LONGEST_LINE = 64 << 10
MOST_DEPTH = 64
"""Lists and objects within each other. A writer or redactor adds levels, so the interpreter's own limit is no bound."""
_READ_BYTES = 64 << 10
_READS_A_TURN = 64


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _is_deeper(document: object, depth: int) -> bool:
    """Return whether lists and objects stand in each other more than ``depth`` times."""
    level = [document]
    for _ in range(depth):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, (dict, list)) for each in level)


def _peer_pid(channel: socket.socket) -> int:
    """Return the pid that connected, as the kernel reports it; 0 if it is no process of this namespace."""
    pid, _, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)


class Connection:
    """Connection of one process. ``rank``: as its hello named it, if that is a rank of this host."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pid = _peer_pid(channel)
        self.kept = bytearray()
        self.rank: int | None = None


class RankSocket(ABC):
    """Socket that is polled like a stream: ``descriptor`` is readable when a rank connects or sends.

    A subclass says in ``take`` what becomes of a line.
    """

    def __init__(self, path: Path, own_ranks: Container[int]) -> None:
        """Open the socket. ``own_ranks``: the ranks of this host. Raises OSError if it cannot be made."""
        self._own_ranks = own_ranks
        self.path = path
        self.is_open = True
        self.dropped_lines = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen(MOST_CONNECTIONS)
        self._ranks: dict[int, Connection] = {}
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

    @abstractmethod
    def take(self, connection: Connection, message: dict[str, Any]) -> None:
        """Take one JSON object that a rank has sent."""

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

    def _accept(self) -> None:
        try:
            rank, _ = self._listener.accept()
        except OSError:
            return
        if len(self._ranks) >= MOST_CONNECTIONS:
            rank.close()
            return
        rank.setblocking(False)
        self._ranks[rank.fileno()] = Connection(rank)
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

    def _keep(self, connection: Connection, line: bytes) -> None:
        """Take a line if it is one JSON object: a torn or foreign line must not stop us."""
        try:
            message = json.loads(line, parse_constant=_refuse) if len(line) <= LONGEST_LINE else None
        except (ValueError, RecursionError):  # a rank's message must not end its supervisor, however deep it nests
            message = None
        if not isinstance(message, dict) or _is_deeper(message, MOST_DEPTH):
            self.dropped_lines += 1
            return
        if message.get("type") == "hello" and message.get("rank") in self._own_ranks:
            connection.rank = int(message["rank"])
        try:
            self.take(connection, message)
        except (OSError, ValueError, RecursionError):  # such as text that no file can hold
            self.dropped_lines += 1
