"""One connection's bytes: a head, a body in pieces, an answer. Each part has a time by which it must have ended.

A silence of ``QUIET_S`` ends the connection, and a part that is too slow as a whole does too: the sweeper calls ``cut``
once ``until_s`` has passed, because a byte now and then would begin the silence again.
"""

import contextlib
import enum
import os
import socket
import ssl
import time
from collections.abc import Iterator
from io import FileIO
from typing import Final

from muster.store.service.faults import S3Error
from muster.store.service.head import MAX_HEAD_BYTES

QUIET_S: Final = 20.0
HEAD_S: Final = 10.0
"""From a connection's start, or the end of the answer before, to the end of a head."""
LEAST_BYTES_PER_S: Final = 16 << 10
"""A body, in either direction, must have this rate over its whole length."""
PIECE_BYTES: Final = 256 << 10
LINGER_S: Final = 1.0
"""An ended connection is read for so long; for ``QUIET_S`` where a client still sends a body that was refused."""
MAX_DRAINED_BYTES: Final = 8 << 20
"""So much of a refused body is read, so that the client gets to read why."""


class BrokenError(Exception):
    """The connection ended, was too slow, or the other side does not take what is sent: no answer is possible."""


class Phase(enum.Enum):
    WAITING = enum.auto()
    """For the beginning or the rest of a head: the connection may be closed for another one."""
    BUSY = enum.auto()


class Stream:
    """A connection. Its own thread reads and writes; others may call ``cut``. Each method may raise BrokenError."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(QUIET_S)
        self._socket = connection
        self._rest = b""
        self._num_left = 0
        self.phase = Phase.WAITING
        self.since_s = time.monotonic()
        self.until_s = self.since_s + HEAD_S

    def secure(self, context: ssl.SSLContext) -> None:
        """Begin TLS."""
        with _connected():
            secured = context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
            self._socket = secured
            secured.do_handshake()

    def head(self) -> bytes | None:
        """Return all up to the empty line, without it; None if the client is done. Raises S3Error."""
        self._begin(Phase.WAITING, HEAD_S)
        content = self._rest
        while (end := content.find(b"\r\n\r\n")) < 0 and len(content) <= MAX_HEAD_BYTES:
            with _connected():
                more = self._socket.recv(MAX_HEAD_BYTES)
            if not more:
                return None
            content += more
        if not 0 <= end <= MAX_HEAD_BYTES:
            raise S3Error("RequestHeaderSectionTooLarge", f"send a head of {MAX_HEAD_BYTES} bytes at most")
        self._rest = content[end + 4 :]
        self._begin(Phase.BUSY, QUIET_S)
        return content[:end]

    def expect_body(self, num_bytes: int) -> None:
        """State how many bytes of a body come now."""
        self._num_left = num_bytes
        self._begin(Phase.BUSY, QUIET_S + num_bytes / LEAST_BYTES_PER_S)

    def pieces(self) -> Iterator[memoryview]:
        """Yield the body. Each piece is valid until the next one."""
        buffer = memoryview(bytearray(min(PIECE_BYTES, self._num_left)))
        while self._num_left:
            if self._rest:
                piece = memoryview(self._rest)[: self._num_left]
                self._rest = self._rest[len(piece) :]
            else:
                with _connected():
                    piece = buffer[: self._socket.recv_into(buffer[: self._num_left])]
            if not piece:
                raise BrokenError("the client ended the connection within a body")
            self._num_left -= len(piece)
            yield piece

    def drain(self) -> bool:
        """Read the rest of a body that is not needed. Return False: it is too much, and the connection must end."""
        if self._num_left > MAX_DRAINED_BYTES:
            return False
        for _ in self.pieces():
            pass
        return True

    def send(self, content: bytes) -> None:
        with _connected():
            self._socket.sendall(content)

    def send_file(self, file: FileIO, start: int, num_bytes: int) -> None:
        """Send a part of a file."""
        self._begin(Phase.BUSY, QUIET_S + num_bytes / LEAST_BYTES_PER_S)
        with _connected():
            if isinstance(self._socket, ssl.SSLSocket):
                self._send_pieces(file, start, num_bytes)
            elif num_bytes and self._socket.sendfile(file, start, num_bytes) != num_bytes:
                raise BrokenError("the object became shorter while it was sent")

    def _send_pieces(self, file: FileIO, start: int, num_bytes: int) -> None:
        end = start + num_bytes
        while start < end:
            piece = os.pread(file.fileno(), min(PIECE_BYTES, end - start), start)
            if not piece:
                raise BrokenError("the object became shorter while it was sent")
            self._socket.sendall(piece)
            start += len(piece)

    def send_bytes(self, content: memoryview) -> None:
        """Send a part of a body, with the time that its length allows."""
        self._begin(Phase.BUSY, QUIET_S + len(content) / LEAST_BYTES_PER_S)
        with _connected():
            self._socket.sendall(content)

    def cut(self) -> None:
        """End the connection from another thread: the own one gets an error from what it waits for."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it so that what was sent last arrives: bytes that stay unread would take it back."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(LINGER_S)
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
            deadline_s = time.monotonic() + (QUIET_S if self._num_left else LINGER_S)
            while time.monotonic() < deadline_s and socket.socket.recv(self._socket, PIECE_BYTES):
                pass
        with contextlib.suppress(OSError):
            self._socket.close()

    def _begin(self, phase: Phase, within_s: float) -> None:
        self.since_s = time.monotonic()
        self.until_s = self.since_s + within_s
        self.phase = phase


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BrokenError(str(error) or type(error).__name__) from error
