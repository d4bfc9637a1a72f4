"""Output streams whose writes never raise: a full log device must not stop what it is about."""

import contextlib
import io
import sys
import threading
from typing import Final, TextIO

LOCK_S: Final = 1.0
"""Longest time that a line waits for the lines of other threads: a pipe that no process reads takes none."""


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
        except (OSError, ValueError):  # full, broken or closed
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
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if raw is None:
        return stream
    with contextlib.suppress(OSError):  # what it had was written, or is lost with its device
        stream.flush()
    with contextlib.suppress(OSError):
        # An object of its own for the descriptor: the old one may remember a file that stood there before.
        raw = io.FileIO(raw.fileno(), "w", closefd=False)
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors=stream.errors, write_through=True)


def keep_streams_open() -> None:
    """Let nothing that this process prints, by whatever library, raise for the device's sake."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, LogStream):
            kept = LogStream(stream)
            setattr(sys, name, kept)
            setattr(sys, f"__{name}__", kept)
