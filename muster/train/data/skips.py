"""Ranges of samples that are left out, as data: they outlive the attempt that found them faulty.

rollback in attempt 1   ``sample_indices`` 108 to 119, stream "train" from draw 9 to draw 10 ── stored
attempt 2               the same place: stands at its end at once
attempt 3, other ranks  the stream's segment has other draws: its numbers are taken out of the segment
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster.train.data.segments import Division, Segment, in_order
from muster.train.data.streams import Mark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster.train.data.segments import Range
    from muster.train.data.streams import SampleStream


@dataclass(frozen=True)
class SkippedDraws:
    """Draws of one stream that are left out, between two marks of one segment."""

    division: Division
    first: Mark
    end: Mark

    def document(self) -> dict[str, Any]:
        """Return it as a record holds it."""
        division = self.division
        return {
            "num_samples": division.num_samples,
            "sizes": list(division.sizes),
            "endless": division.is_endless,
            "drops_last": division.drops_last,
            "left": [list(each) for each in self.first.left],
            "base": self.first.base,
            "draws": [_listed(self.first), _listed(self.end)],
            "num_drawn": [self.first.num_drawn, self.end.num_drawn],
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SkippedDraws:
        """Return it from a record."""
        sizes = tuple(document["sizes"])
        division = Division(document["num_samples"], sizes, document["endless"], document["drops_last"])
        left = tuple((begin, end) for begin, end in document["left"])
        first, end = (
            Mark(left, document["base"], _unlisted(draws), num_drawn)
            for draws, num_drawn in zip(document["draws"], document["num_drawn"], strict=True)
        )
        return cls(division, first, end)

    def leave_out(self, stream: SampleStream) -> None:
        """Take the draws out of a stream that has other ones, as on another number of ranks."""
        if not self.is_of(stream):
            stream.leave_out(self._numbers())

    def is_of(self, stream: SampleStream) -> bool:
        """Return whether the stream reaches these very draws."""
        segment = stream.segment
        return (segment.division, segment.left, segment.base) == (self.division, self.first.left, self.first.base)

    def _numbers(self) -> list[Range]:
        segment = Segment(self.division, self.first.left, self.first.base)
        firsts, ends = (_of_each_place(mark, len(self.division.sizes)) for mark in (self.first, self.end))
        return in_order(
            each
            for place, (begin, end) in enumerate(zip(firsts, ends, strict=True))
            for draw in range(begin, end)
            for each in segment.numbers(draw, place)
        )


def skipped_draws(division: Division, first: Mark, end: Mark) -> SkippedDraws | None:
    """Return the draws between two marks; None if there are none, or if the marks are of two segments."""
    is_one_segment = (first.left, first.base) == (end.left, end.base)
    return SkippedDraws(division, first, end) if first != end and is_one_segment else None


def _listed(mark: Mark) -> int | list[int]:
    return mark.draws if isinstance(mark.draws, int) else list(mark.draws)


def _unlisted(draws: Any) -> int | tuple[int, ...]:
    return draws if isinstance(draws, int) else tuple(draws)


def _of_each_place(mark: Mark, num_places: int) -> list[int]:
    return [mark.draws] * num_places if isinstance(mark.draws, int) else list(mark.draws)
