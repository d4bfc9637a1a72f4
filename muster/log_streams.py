"""Output streams whose writes never raise: a full log device must not stop what it is about."""

import io
import sys
import threading
from typing import TextIO


class LogStream(io.TextIOBase):
    """A stream of text whose ``write`` and ``flush`` never raise. What the device does not take is counted."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lock = threading.Lock()
        self.num_lost = 0

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class has a plain attribute
        return self._stream.encoding

    def write(self, text: str, /) -> int:
        with self._lock:
            lost = f"{self.num_lost} writes to this log were lost: its device took nothing\n" if self.num_lost else ""
            try:
                self._stream.write(lost + text)
                self._stream.flush()
            except (OSError, ValueError):  # full, broken or closed
                self.num_lost += 1
            else:
                self.num_lost = 0
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


def keep_streams_open() -> None:
    """Let nothing that this process prints, by whatever library, raise for the device's sake."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, LogStream):
            kept = LogStream(stream)
            setattr(sys, name, kept)
            setattr(sys, f"__{name}__", kept)
