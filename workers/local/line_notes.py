"""Lines about faults in the output of a run on this machine, reported to the person who watches it: each kind once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from muster.domain.exit.fault_lines import Role
from watch.lines.findings import OF_A_PROGRAM
from watch.lines.reader import LineReaders
from watch.lines.transports import transport_words

MOST_NOTES: Final = 20
LINES_A_PIECE: Final = 10_000
_LONGEST: Final = 300


@dataclass(slots=True)
class LineNotes:
    """Reader of all streams of one attempt. ``report``: takes a sentence.

    Only roots are reported: a cascade or a symptom states that another rank is at fault. What a program raises is its
    own output, which is shown anyway.
    """

    report: Callable[[str], None]
    _readers: LineReaders = field(default_factory=lambda: LineReaders(LINES_A_PIECE))
    _reported: set[str] = field(default_factory=set)

    def take(self, stream: str, content: bytes) -> None:
        """Read the next piece of a stream."""
        self._readers.begin_turn()
        reader = self._readers.of(stream)
        for finding in reader.feed(content):
            if finding.role is Role.ROOT and finding.name != OF_A_PROGRAM:
                by = "a rank" if finding.rank is None else f"rank {finding.rank}"
                self._note(
                    finding.name, f"{by} printed a line about a fault ({finding.fault}): {finding.text[:_LONGEST]}"
                )
        if reader.transport is not None:
            words = transport_words(reader.transport)
            self._note(words, f"NCCL chose {words} for traffic between hosts; within this machine it uses none")

    def _note(self, key: str, sentence: str) -> None:
        if key not in self._reported and len(self._reported) < MOST_NOTES:
            self._reported.add(key)
            self.report(sentence)
