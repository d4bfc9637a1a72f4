"""A reader of one stream of a running job: bytes in as they are written, findings out. Its memory is bounded.

Most of a log is about no fault, so a chunk is searched for a few marks first, and split into lines only where one is
found or a traceback is open. A line that is torn between two chunks waits for its rest.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from watch.lines.findings import MAX_LINE, LineFinding, exception_of, read_line, without_prefix
from watch.lines.transports import ChosenTransport, TransportReader

MAX_OF_A_KIND: Final = 20
"""Most findings of one row that one stream gives: a broken link writes a line for each message."""
_TRACEBACK: Final = "Traceback (most recent call last)"
_MARKS: Final = (
    b"NCCL WARN",
    b"retrying (",
    b".cpp:",
    b".cc:",
    b".hpp:",
    b"Error",
    b"Exception",
    b"Interrupt",
    b"what():",
    b"torch/distributed/elastic",
    b"NCCL INFO NET/",
    b"NCCL INFO Using network",
    _TRACEBACK.encode(),
)
"""Each form in which a component writes a line holds one of these: a chunk without any holds no line of the table."""
_INFO: Final = "NCCL INFO "
_LINE_END: Final = re.compile(rb"[\r\n]")


@dataclass(slots=True)
class LineBudget:
    """So many lines that may be about a fault are still read; the others are skipped. Readers may share it."""

    num_left: int


class LineReaders:
    """The readers of an attempt's streams, with one budget of ``num_lines`` between two calls of ``begin_turn``."""

    def __init__(self, num_lines: int) -> None:
        self._num_lines = num_lines
        self._budget = LineBudget(num_lines)
        self._readers: dict[str, LineReader] = {}

    def begin_turn(self) -> None:
        """Allow the work of another turn."""
        self._budget.num_left = self._num_lines

    def of(self, stream: str) -> "LineReader":
        """Return the reader of a stream; one that is named by a number is the output of that rank."""
        if stream not in self._readers:
            rank = int(stream) if stream.isdecimal() else None
            self._readers[stream] = LineReader(rank=rank, budget=self._budget)
        return self._readers[stream]


class LineReader:
    """The reader of one stream. ``rank``: whose output it is, if one rank's alone; ``is_kernel``: a kernel's log.

    ``budget``: bounds the work for a program that prints nothing but lines in the form of a fault.
    """

    def __init__(self, *, rank: int | None = None, is_kernel: bool = False, budget: LineBudget | None = None) -> None:
        self._rank = rank
        self._budget = budget
        self._is_kernel = is_kernel
        self._torn = b""
        self._is_in_traceback = False
        self._counts: Counter[str] = Counter()
        self._transport = TransportReader()

    @property
    def transport(self) -> ChosenTransport | None:
        """Return the transport that NCCL stated, if it did so in this stream."""
        return self._transport.chosen

    def feed(self, content: bytes) -> tuple[LineFinding, ...]:
        """Return the findings of the lines that are whole now."""
        whole = self._whole_lines(content)
        if not whole or not (self._is_kernel or self._is_in_traceback or any(mark in whole for mark in _MARKS)):
            return ()
        return tuple(self._bounded(_LINE_END.split(whole)))

    def close(self) -> tuple[LineFinding, ...]:
        """Return the finding of the last line, which has no end."""
        last, self._torn = self._torn, b""
        return tuple(self._bounded([last])) if last else ()

    def _whole_lines(self, content: bytes) -> bytes:
        """Return the whole lines; keep the rest, at most the first ``MAX_LINE`` bytes of it."""
        position = max(content.rfind(b"\n"), content.rfind(b"\r"))
        if position < 0:
            self._torn = (self._torn + content[:MAX_LINE])[:MAX_LINE]
            return b""
        whole = self._torn + content[: position + 1]
        self._torn = content[position + 1 :][:MAX_LINE]
        return whole

    def _bounded(self, lines: list[bytes]) -> Iterator[LineFinding]:
        for raw in lines:
            if not (self._is_kernel or self._is_in_traceback or any(mark in raw for mark in _MARKS)):
                continue
            if self._budget is not None:
                if self._budget.num_left <= 0:
                    return
                self._budget.num_left -= 1
            finding = self._read(raw[:MAX_LINE].decode("utf-8", "replace"))
            if finding is not None:
                yield finding

    def _read(self, line: str) -> LineFinding | None:
        if self._is_kernel:
            return read_line(line, is_kernel=True, is_wanted=self._is_wanted)
        if _INFO in line:
            self._transport.read(line)
        if _TRACEBACK in line:
            self._is_in_traceback = True
            return None
        if not self._is_in_traceback:
            return read_line(line, rank=self._rank, is_wanted=self._is_wanted)
        words = without_prefix(line)
        if words[:1].isspace() or not words:
            return read_line(line, rank=self._rank, is_wanted=self._is_wanted) if words.strip() else None
        self._is_in_traceback = False
        return exception_of(line, rank=self._rank, is_wanted=self._is_wanted)

    def _is_wanted(self, name: str) -> bool:
        self._counts[name] += 1
        return self._counts[name] <= MAX_OF_A_KIND
