"""Output streams whose writes never raise and never hang: a log device that is full stops nothing.

A line for a pipe, a socket or a terminal that takes nothing waits ``LOCK_S`` at most. The lines after it wait no more
until the device takes one again.
"""

import contextlib
import errno
import io
import os
import select
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TextIO

LOCK_S: Final = 1.0
"""Longest time that a line waits for its device, and for the lines of other threads."""


class _Device(io.RawIOBase):
    """The descriptor of a log. A write is whole, or it raises in bounded time.

    The descriptor itself stays blocking: other processes may have the same. A pipe or terminal is opened a second time
    for each write, since ``dup2`` may put another device in its place at any time.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._is_stuck = False
        self._is_torn = False

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, content: Any, /) -> int:
        whole = bytes(content)
        left = b"\n" + whole if self._is_torn else whole
        size = len(left)
        with _sender(self._descriptor) as send:
            until = time.monotonic() + (0.0 if self._is_stuck else LOCK_S)
            try:
                while left:
                    left = left[self._send(send, left, until) :]
            except OSError:
                self._is_torn = self._is_torn or len(left) < size
                raise
        self._is_stuck = self._is_torn = False
        return len(whole)

    def _send(self, send: Callable[[bytes], int], left: bytes, until: float) -> int:
        """Send a part that the device takes at once. Raises BlockingIOError if it takes none until ``until``."""
        while True:
            try:
                return send(left)
            except BlockingIOError:
                left_s = max(until - time.monotonic(), 0.0)
                if not _has_room(self._descriptor, left_s) or not left_s:
                    self._is_stuck = True
                    raise


@contextlib.contextmanager
def _sender(descriptor: int) -> Iterator[Callable[[bytes], int]]:
    """Yield a function that writes to the device without waiting, and returns the number of bytes taken."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(kind):
        with socket.socket(fileno=os.dup(descriptor)) as channel:
            yield lambda content: channel.send(content, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    elif stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            own = os.open(f"/proc/self/fd/{descriptor}", flags)
        except OSError as fault:
            if fault.errno == errno.ENXIO:  # a pipe without a reader
                raise
            yield lambda content: _write_atomic(descriptor, content)  # of another user, or there is no /proc
            return
        try:
            yield lambda content: os.write(own, content)
        finally:
            os.close(own)
    else:
        yield lambda content: os.write(descriptor, content)


def _write_atomic(descriptor: int, content: bytes) -> int:
    """Write as much as a pipe with room takes at once. Only a writer that is as fast can make it wait."""
    if not _has_room(descriptor, 0.0):
        raise BlockingIOError
    return os.write(descriptor, content[: select.PIPE_BUF])


def _has_room(descriptor: int, within_s: float) -> bool:
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    return bool(room.poll(within_s * 1000))


class LogStream(io.TextIOBase):
    """A stream of text whose ``write`` and ``flush`` never raise. What the device does not take is counted."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._kept = stream  # its end would close the device
        self._stream = _unbuffered(stream)
        self._lock = threading.Lock()
        self.num_lost = 0

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class has a plain attribute
        return self._stream.encoding

    def write(self, text: str, /) -> int:
        if not self._lock.acquire(timeout=LOCK_S):  # another thread's line is stuck in the device
            self.num_lost += 1
            return len(text)
        try:
            num_lost = self.num_lost
            lost = f"{num_lost} writes to this log were lost: its device took nothing\n" if num_lost else ""
            self._stream.write(lost + text)
            self._stream.flush()
        except (OSError, ValueError):  # full, stuck, broken or closed
            self.num_lost += 1
        else:
            self.num_lost -= num_lost
        finally:
            self._lock.release()
        return len(text)

    def flush(self) -> None:
        """Do nothing: each write is flushed."""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        try:
            return self._stream.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        return self._stream.fileno()


def _unbuffered(stream: TextIO) -> TextIO:
    """Return a stream that keeps nothing of a write that failed, as ``python -u`` has it.

    A buffer would hold the line, which is counted as lost, and write it later.
    """
    raw: Any = getattr(getattr(stream, "buffer", None), "raw", None)
    if raw is None:
        return stream
    with contextlib.suppress(OSError):  # what it had was written, or is lost with its device
        stream.flush()
    with contextlib.suppress(OSError):
        raw = _Device(raw.fileno())
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors=stream.errors, write_through=True)


def keep_streams_open() -> None:
    """Let nothing that this process prints, by whatever library, raise for the device's sake."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, LogStream):
            kept = LogStream(stream)
            setattr(sys, name, kept)
            setattr(sys, f"__{name}__", kept)
