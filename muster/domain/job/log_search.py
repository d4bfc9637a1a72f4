"""Lines of a log that hold a text: pure, over pieces that may end anywhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LONGEST_LINE_BYTES: Final = 64 << 10
"""Length from which a line is searched in stretches of this length, which overlap by the sought text."""
SHOWN_BYTES: Final = 2_000
"""Most bytes that are shown of a long line, around the first place where the text stands."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A text as a person types it. Letters without their case are ASCII's and all others that have one."""

    text: str
    ignores_case: bool = False

    def place_in(self, line: bytes) -> int | None:
        """Return the first byte of the text in the line, or None.

        The byte is approximate where lower case has another length.
        """
        if not self.ignores_case:
            found = line.find(self.text.encode())
        else:
            found = line.decode("utf-8", "replace").casefold().find(self.text.casefold())
        return None if found < 0 else min(found, len(line))


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line that holds the text. ``offset``: its first byte in the stream; ``end``: the byte after its newline."""

    offset: int
    end: int
    text: bytes


class LineSearch:
    """Fed with the pieces of one stream in their order; where bytes were dropped between two, a line ends."""

    def __init__(self, sought: Sought, start: int = 0) -> None:
        self._sought = sought
        self._overlap = len(sought.text.encode()) - 1
        self._rest = b""
        self.line_begins = start
        """The byte at which the line begins that has not ended yet: where to continue from."""

    def feed(self, offset: int, content: bytes) -> Iterator[FoundLine]:
        """Yield the lines that end in this piece and hold the text.

        ``line_begins`` moves behind each line as it is yielded.
        """
        if offset != self.line_begins + len(self._rest):
            yield from self.end()
            self.line_begins = offset
        waiting = self._rest + content
        begin = 0
        while (newline := waiting.find(b"\n", begin)) >= 0:
            self._rest = b""
            yield from self._matches(waiting[begin:newline], newline + 1 - begin)
            begin = newline + 1
        self._rest = waiting[begin:]
        while len(self._rest) > LONGEST_LINE_BYTES:
            stretch, kept = self._rest[:LONGEST_LINE_BYTES], LONGEST_LINE_BYTES - self._overlap
            self._rest = self._rest[kept:]
            yield from self._matches(stretch, kept)

    def end(self) -> Iterator[FoundLine]:
        """Yield the last line, which has no newline."""
        line, self._rest = self._rest, b""
        yield from self._matches(line, len(line))

    def _matches(self, line: bytes, length: int) -> Iterator[FoundLine]:
        begins, self.line_begins = self.line_begins, self.line_begins + length
        place = self._sought.place_in(line)
        if place is None:
            return
        shown_from = 0 if len(line) <= SHOWN_BYTES else max(0, min(place - SHOWN_BYTES // 4, len(line) - SHOWN_BYTES))
        yield FoundLine(begins + shown_from, self.line_begins, line[shown_from : shown_from + SHOWN_BYTES])
