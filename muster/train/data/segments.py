"""Division of a stream's samples among ranks: pure functions of the stream's order and of the batch sizes of all ranks.

A stream numbers its samples on and on: number ``n`` belongs to epoch ``n // num_samples``. A segment states which
numbers were not drawn when it began, and how ranks share them. With three ranks of batch sizes 4, 4 and 2:

    number   0 1 2 3 | 4 5 6 7 | 8 9 | 10 11 12 13 | 14 …
    rank     0       | 1       | 2   | 0           | 1
    draw     0       | 0       | 0   | 1           | 1

A draw of all ranks takes a contiguous piece, in rank order, so the order does not depend on how many ranks there are.
If other ranks continue, ``Segment.rest`` gives the numbers that no rank has drawn, of which they make a segment of
their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Range = tuple[int, int]
"""Numbers from the first up to the second, which is not included."""


@dataclass(frozen=True)
class Division:
    """How places share a stream. A place is a rank, or the ranks that read the same samples.

    ``sizes``: the batch size of each place. ``is_endless``: a draw may reach into the next epoch; else an epoch ends
    with a partial draw, or with ``drops_last`` leaves those samples out.
    """

    num_samples: int
    sizes: tuple[int, ...]
    is_endless: bool = True
    drops_last: bool = False

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Where the share of each place ends in a whole draw; the first is 0."""
        return (0, *accumulate(self.sizes))

    @property
    def batch(self) -> int:
        """Samples of one draw of all places."""
        return self.ends[-1]

    def num_draws(self, length: int) -> int:
        """Return how many draws an epoch, or the rest of one, of that length has."""
        return length // self.batch if self.drops_last else -(-length // self.batch)

    def share(self, place: int, number: int) -> Range:
        """Return one place's share of a draw of ``number`` samples: its batch, or a part in proportion to it."""
        begin, end = self.ends[place], self.ends[place + 1]
        return (begin, end) if number == self.batch else (number * begin // self.batch, number * end // self.batch)

    def share_of_epoch(self, place: int) -> Range:
        """Return one place's share of the first draw of an epoch."""
        return self.share(place, min(self.batch, self.num_samples))


@dataclass(frozen=True)
class _Section:
    """Draws that belong together: the rest of an epoch, or an epoch. ``first``: its first draw."""

    first: int
    begin: int
    end: int


@dataclass(frozen=True)
class Segment:
    """Numbers that were not drawn when it began: those in ``left`` first, then all from ``base`` on.

    Draws take them in this order. ``base`` begins an epoch if the stream is not endless.
    """

    division: Division
    left: tuple[Range, ...] = ()
    base: int = 0

    @classmethod
    def of(cls, division: Division, left: tuple[Range, ...] = (), base: int = 0) -> Segment:
        """Return the segment of these numbers. The rest of an epoch moves to ``left`` if iterators end with it."""
        begun = base % division.num_samples
        if division.is_endless or not begun:
            return cls(division, left, base)
        next_epoch = base - begun + division.num_samples
        return cls(division, tuple(_joined([*left, (base, next_epoch)])), next_epoch)

    @cached_property
    def _num_left(self) -> int:
        return sum(end - begin for begin, end in self.left)

    def numbers(self, draw: int, place: int) -> list[Range]:
        """Return the numbers that a place takes at its draw; none if its share of a partial draw is empty."""
        begin, length = self._whole(draw)
        first, last = self.division.share(place, length)
        return list(self._numbers(begin + first, begin + last))

    def after(self, draw: int, place: int, number: int) -> int:
        """Return the place's next draw after ``number`` draws of its own from ``draw`` on."""
        if self.division.is_endless:
            return draw + number
        for _ in range(number):
            draw = self.next_draw(draw, place) + 1
        return draw

    def next_draw(self, draw: int, place: int) -> int:
        """Return the first draw, from ``draw`` on, of which the place's share is not empty."""
        if not self.division.is_endless:
            while not self.numbers(draw, place):
                draw += 1
        return draw

    def is_of_one_epoch(self, draw: int, other: int) -> bool:
        """Return whether one iterator yields both draws."""
        return self.division.is_endless or self._section(draw) == self._section(other)

    def epoch(self, draw: int) -> int:
        """Return the epoch in which a draw begins."""
        begin = self._whole(draw)[0]
        number = next((first for first, _ in self._numbers(begin, begin + 1)), self.base)
        return number // self.division.num_samples

    def rest(self, draws: Sequence[int]) -> tuple[tuple[Range, ...], int]:
        """Return ``left`` and ``base`` of what no place has drawn. ``draws``: the next draw of each."""
        most = max(draws)
        missed = [
            each
            for place, reached in enumerate(draws)
            for draw in range(reached, most)
            for each in self.numbers(draw, place)
        ]
        begin, _ = self._whole(most)
        end = max(begin, self._num_left)
        if not self.division.is_endless:
            section = self._section(most)
            end = section.begin if section.first == most and begin >= self._num_left else section.end
        return tuple(_joined([*sorted(missed), *self._numbers(begin, end)])), self.base + end - self._num_left

    def _section(self, draw: int) -> _Section:
        division = self.division
        num_left_draws = division.num_draws(self._num_left)
        if draw < num_left_draws:
            return _Section(0, 0, self._num_left)
        num_draws = division.num_draws(division.num_samples)
        epoch = (draw - num_left_draws) // num_draws
        begin = self._num_left + epoch * division.num_samples
        return _Section(num_left_draws + epoch * num_draws, begin, begin + division.num_samples)

    def _whole(self, draw: int) -> tuple[int, int]:
        """Return where a draw of all places begins in the segment's order, and its number of samples."""
        if self.division.is_endless:
            return draw * self.division.batch, self.division.batch
        section = self._section(draw)
        begin = section.begin + (draw - section.first) * self.division.batch
        return begin, min(self.division.batch, section.end - begin)

    def _numbers(self, begin: int, end: int) -> Iterator[Range]:
        """Yield the numbers at these places of the segment's order."""
        passed = 0
        for first, last in self.left:
            at, until = max(begin, passed), min(end, passed + last - first)
            if at < until:
                yield first + at - passed, first + until - passed
            passed += last - first
        if max(begin, passed) < end:
            yield self.base + max(begin, passed) - passed, self.base + end - passed


def in_order(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in the order of their numbers, with neighbours that continue each other as one."""
    return list(_joined(sorted(ranges)))


def without(left: tuple[Range, ...], base: int, gone: Sequence[Range]) -> tuple[tuple[Range, ...], int]:
    """Return ``left`` and ``base`` of a segment without the numbers in ``gone``, in the order as before."""
    end_of_gone = max((end for _, end in gone), default=base)
    pieces = [*left, *([(base, end_of_gone)] if base < end_of_gone else [])]
    kept: list[Range] = []
    for piece in pieces:
        begin, end = piece
        for first, last in sorted(gone):
            if last <= begin or first >= end:
                continue
            if begin < first:
                kept.append((begin, first))
            begin = last
        if begin < end:
            kept.append((begin, end))
    return tuple(_joined(kept)), max(base, end_of_gone)


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield the ranges in their order, with neighbours that continue each other as one."""
    held: Range | None = None
    for begin, end in ranges:
        if held is not None and held[1] == begin:
            held = (held[0], end)
            continue
        if held is not None:
            yield held
        held = (begin, end)
    if held is not None:
        yield held
