"""One program's output: read always, kept up to a cap, never more than a few kilobytes in memory.

The head of a stream goes to disk, since that is where configuration and first errors stand. Output after the cap is
counted and dropped, but its tail is kept in memory, since that is where the traceback stands. When the stream ends its
tail goes to disk too, after a line with the number of bytes that were left out between.
"""

from __future__ import annotations

import os
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.user.redaction import Redactor, StreamRedactor

READ_BYTES = 1 << 18
READS_A_TURN = 16
TAIL_BYTES = 16 << 10
EXCERPT_BYTES = 4 << 10
_SIGN_BYTES = 512
_OF_THE_END = (b"CUDA out of memory", b"OutOfMemoryError")
"""Signs that a program may catch and continue for days: they count in its last lines alone."""
_OF_ANY_TIME = (
    b"uncorrectable ECC error encountered",
    b"uncorrectable NVLink error detected",
    b"with status=12 ",
    b"(12) opcode",
    b"with error 12,",
    b"port error",
    b"async fatal event",
    b"local catastrophic error",
    b"CUDA_ERROR_CONTAINED",
    b"over nvlink or a hardware error",
    b"Watchdog caught collective operation timeout",
    b"watchdog got stuck for",
)
"""Signs that may stand long before a log's last lines."""
SIGNS = (*_OF_THE_END, *_OF_ANY_TIME)
"""Signs of ``muster.domain.exit.exit_signs`` after which more output may follow than an excerpt holds."""
_LONGEST_SIGN = max(len(sign) for sign in SIGNS)
_TRACEBACK = b"Traceback (most recent call last)"
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
_CHAIN_BYTES = 160
"""Most bytes between the text that chains two tracebacks and the second one, with a rank's prefix on each line."""


class LogStream:
    """Stream of a program. ``descriptor``: the non-blocking read end. The writer waits for us one turn at most."""

    def __init__(
        self, folder: Path, name: str, descriptor: int, limit_bytes: int, redactor: Redactor | None = None
    ) -> None:
        self.name = name
        self.descriptor = descriptor
        self.dropped_bytes = 0
        self.is_open = True
        self._folder = folder
        self._limit = self._room = limit_bytes
        self._redactor = StreamRedactor(redactor or Redactor())
        self._tail = b""
        self._sign = b""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"{name}.log", flags, 0o600)

    def pump(self) -> None:
        """Read what is there, a bounded amount, so that one loud rank never keeps us from a stop order."""
        for _ in range(READS_A_TURN):
            try:
                content = os.read(self.descriptor, READ_BYTES)
            except BlockingIOError:
                return
            if not content:
                self.close()
                return
            self._keep(self._redactor.take(content))

    def drain(self) -> None:
        """Read all remaining output, after there is no writer."""
        while self.is_open:
            before = self._tail
            self.pump()
            if self._tail is before:
                return

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._keep(self._redactor.rest())
            self._keep_end()
            os.close(self.descriptor)
            os.close(self._file)
            document = {"stream": self.name, "dropped_bytes": self.dropped_bytes}
            files.write_json(self._folder / f"{self.name}.json", document)

    def excerpt(self) -> str:
        return excerpt_of(self._tail, self._sign)

    def _keep(self, content: bytes) -> None:
        kept = content[: self._room]
        self.dropped_bytes += len(content) - self._write(kept)
        self._room -= len(kept)
        if not self._sign:
            self._sign = sign_in(self._tail[-_LONGEST_SIGN:] + content)
        self._tail = (self._tail + content)[-TAIL_BYTES:] if len(content) < TAIL_BYTES else content[-TAIL_BYTES:]

    def _keep_end(self) -> None:
        """Keep whole lines of the last output, if it exceeds what the cap let through."""
        end = self._tail[-self.dropped_bytes :] if self.dropped_bytes else b""
        if len(end) < self.dropped_bytes:
            end = end.partition(b"\n")[2] or end
        if num_left_out := self.dropped_bytes - len(end):
            self._write(f"\n[muster: {num_left_out} bytes were left out here, past the first {self._limit}]\n".encode())
        self.dropped_bytes -= self._write(end)

    def _write(self, content: bytes) -> int:
        """Write to disk and return how many bytes were written: a full disk loses log lines, never the program."""
        written = 0
        while written < len(content):
            try:
                written += os.write(self._file, content[written:])
            except OSError:
                return written
        return written


def sign_in(content: bytes, signs: tuple[bytes, ...] = _OF_ANY_TIME) -> bytes:
    """Return the line that names a known fault: the output after it may be longer than any tail."""
    for sign in signs:
        position = content.find(sign)
        if position >= 0:
            start = max(content.rfind(b"\n", 0, position) + 1, position - _SIGN_BYTES // 2)
            return content[start : start + _SIGN_BYTES].split(b"\n", 1)[0]
    return b""


def excerpt_of(tail: bytes, sign: bytes = b"") -> str:
    """Return the last traceback, else the last lines; at most EXCERPT_BYTES of UTF-8 without what JSON
    stores refuse.
    """
    start = _last_traceback(tail)
    chosen = tail[start:].strip() if start >= 0 else b"\n".join(tail.strip().splitlines()[-20:])
    sign = sign_in(chosen, _OF_THE_END) or sign
    if sign and sign not in chosen[-EXCERPT_BYTES + len(sign) :]:
        chosen = sign + b"\n" + chosen[-(EXCERPT_BYTES - len(sign) - 1) :]
    return chosen[-EXCERPT_BYTES:].decode("utf-8", "ignore").replace("\x00", "")


def _last_traceback(tail: bytes) -> int:
    """Return the begin of the last traceback with the ones that it followed from; -1 if there is none."""
    start = tail.rfind(_TRACEBACK)
    while start > 0 and any(words in tail[max(start - _CHAIN_BYTES, 0) : start] for words in _CHAINED):
        earlier = tail.rfind(_TRACEBACK, 0, start)
        if earlier < 0:
            break
        start = earlier
    return start


def tail_of_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read()
    except OSError:
        return b""
