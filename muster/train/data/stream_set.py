"""All streams of one rank: their use by name, the exchange of each step, and their state in a checkpoint."""

from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING, Any

from muster.train.data.samples import NO_SAMPLES
from muster.train.data.segments import Segment
from muster.train.data.skips import SkippedDraws, skipped_draws
from muster.train.data.streams import Order, SampleStream
from muster.train.parallel.naming import ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from muster.train.data.segments import Division
    from muster.train.data.streams import Mark
    from muster.train.parallel.ranks import Agreement

MOST_STREAMS = 8
"""Streams of a program: each has a place in the exchange of every step."""
_DIGEST_BITS = 62


class Streams:
    """Streams of one rank. ``saved``: states of a checkpoint whose streams the program has not requested yet."""

    def __init__(self, seed: int, place: int, num_places: int, *, is_shared: bool = False) -> None:
        self.saved: dict[str, Any] = {}
        self._seed = seed
        self._place = place
        self._num_places = num_places
        self._is_shared = is_shared
        self._streams: dict[str, SampleStream] = {}
        self._skipped: dict[str, list[SkippedDraws]] = {}
        self._is_in_step = False
        self._digest = 0

    def stream(self, order: Order, division: Division) -> SampleStream:
        """Return the stream of that name, which continues where the checkpoint left it.

        Raises:
            ValueError: the program has another stream of that name, or too many streams.
        """
        known = self._streams.get(order.name)
        if known is not None:
            if (known.order, known.segment.division) != (order, division):
                raise ValueError(f"the stream {order.name} is in use with other arguments: choose another name")
            return known
        if len(self._streams) == MOST_STREAMS:
            raise ValueError(f"a run has {MOST_STREAMS} streams at the most, and {order.name} is one more")
        made = self._restored(order, division, self.saved)
        if self._is_in_step:
            made.begin()
        self._streams[order.name] = made
        self._digest = self._digest_of_all()
        return made

    def order(self, name: str, num_samples: int, *, is_shuffled: bool) -> Order:
        """Return the order of a stream of this run."""
        return Order(name, num_samples, is_shuffled, self._seed)

    def sizes(self, batch_size: int | Sequence[int]) -> tuple[int, ...]:
        """Return the batch size of each place. Raises ValueError if it is no positive number, or not one a place."""
        sizes = [_whole_number(each) for each in self._listed(batch_size)]
        if len(sizes) != self._num_places:
            raise ValueError(
                f"batch_size lists {len(sizes):,} numbers, and {self._num_places:,} ranks read different samples: give "
                "one number for all, or one for each of them"
            )
        if not all(size > 0 for size in sizes):
            raise ValueError(f"batch_size {batch_size!r}: each must be a whole number, 1 or more")
        return tuple(sizes)

    def _listed(self, batch_size: int | Sequence[int]) -> Sequence[object]:
        """Return what is given for each place: one value for all is no sequence."""
        try:
            return tuple(batch_size)  # type: ignore[arg-type]
        except TypeError:
            return (batch_size,) * self._num_places

    @property
    def num_drawn(self) -> int:
        """Samples that all ranks have seen of all streams."""
        return sum(each.num_drawn for each in self._streams.values())

    @property
    def epochs(self) -> float | None:
        """Epochs of the stream of which most samples were drawn; None: nothing was drawn."""
        most = max(self._streams.values(), key=lambda each: each.num_drawn, default=None)
        return most.epochs if most is not None and most.num_drawn else None

    def roll_back(self, saved: Mapping[str, Any]) -> None:
        """Stand where a checkpoint of this attempt, or of the one before it, stood."""
        for each in self._streams.values():
            each.stand(self._restored(each.order, each.segment.division, saved).mark())
        self.saved = dict(saved)

    def marks(self) -> dict[str, Mark]:
        """Return where each stream stands."""
        return {name: each.mark() for name, each in self._streams.items()}

    @property
    def is_ahead(self) -> bool:
        """Whether the program holds a batch of any stream that it drew before its first step."""
        return any(each.is_ahead for each in self._streams.values())

    def skip(self, first: Mapping[str, Mark], end: Mapping[str, Mark]) -> dict[str, Any]:
        """Leave out what was drawn between two places, both as ``marks`` returns them, when its turn comes.

        Return it as ``take_skipped`` takes it, in this attempt or a later one.
        """
        names = first.keys() & end.keys() & self._streams.keys()
        ways = {name: skipped_draws(self._streams[name].segment.division, first[name], end[name]) for name in names}
        documents = {name: way.document() for name, way in sorted(ways.items()) if way is not None}
        self.take_skipped(documents)
        return documents

    def take_skipped(self, documents: Mapping[str, Any]) -> None:
        """Leave out, when their turn comes, draws that this attempt or an earlier one skipped."""
        for name, document in documents.items():
            self._skipped.setdefault(name, []).append(SkippedDraws.of(document))

    def _restored(self, order: Order, division: Division, saved: Mapping[str, Any]) -> SampleStream:
        """Return a stream as a checkpoint left it, without the numbers of skipped draws that it cannot reach."""
        made = SampleStream(order, Segment.of(division), self._place)
        if order.name in saved:
            made.restore(saved[order.name])
        for each in self._skipped.get(order.name, ()):
            if each.division.num_samples == order.num_samples:
                each.leave_out(made)
        return made

    def begin(self) -> None:
        """Begin a step."""
        self._is_in_step = True
        for name, each in self._streams.items():
            ways = self._skipped.get(name, [])
            for _ in ways:  # each is taken once at the most, in whatever order they were found
                onward = next((way.end for way in ways if way.is_of(each) and each.mark() == way.first), None)
                if onward is None:
                    break
                each.stand(onward)
        for each in self._streams.values():
            each.begin()

    def end(self) -> int:
        """End a step, and return how many samples this rank drew in it."""
        self._is_in_step = False
        return sum(each.end() for each in self._streams.values())

    def batches_in_step(self) -> dict[str, list[list[int]]]:
        """Return what this rank drew in the step, by stream."""
        return {name: each.batches_in_step() for name, each in self._streams.items() if each.num_in_step}

    def figures(self) -> list[int]:
        """Return figures of the step that ended, of which all ranks take the highest, for ``agree``."""
        taken = [each.num_in_step for each in self._streams.values()]
        taken += [0] * (MOST_STREAMS - len(taken))
        fewest = [NO_SAMPLES if self._is_shared and not number else -number for number in taken]
        return [self._digest, -self._digest, *taken, *fewest]

    def agree(self, highest: Sequence[int], ranks: Agreement) -> None:
        """Take over what all ranks drew in the step.

        Raises, on every rank:
            ValueError: ranks have different streams, or one falls too far behind.
        """
        if highest[0] != -highest[1]:
            self._raise_unlike(ranks)
        most, minus_fewest = highest[2 : 2 + MOST_STREAMS], highest[2 + MOST_STREAMS :]
        is_even = all(high == -low or low == NO_SAMPLES for high, low in zip(most, minus_fewest, strict=True))
        if is_even:
            for each, number in zip(self._streams.values(), most, strict=False):
                each.advance_alike(number)
            return
        taken = [[0] * self._num_places for _ in self._streams]
        for place, told in ranks.gather((self._place, [each.num_in_step for each in self._streams.values()])):
            for numbers, number in zip(taken, told, strict=True):
                numbers[place] = max(numbers[place], number)
        for each, numbers in zip(self._streams.values(), taken, strict=True):
            each.advance(numbers)

    def document(self) -> dict[str, Any]:
        """Return the state of all streams, as a manifest holds it; of the ones that wait for their use too."""
        return {**self.saved, **{name: each.document() for name, each in self._streams.items()}}

    def _words(self) -> list[str]:
        return [f"{each.order} {each.segment.division}" for each in self._streams.values()]

    def _digest_of_all(self) -> int:
        words = "\n".join(self._words()).encode()
        return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") >> (64 - _DIGEST_BITS)

    def _raise_unlike(self, ranks: Agreement) -> None:
        by_words: dict[str, list[int]] = {}
        for rank, words in enumerate(ranks.gather("; ".join(self._words()) or "none")):
            by_words.setdefault(words, []).append(rank)
        listed = "; ".join(f"on {ranks_in_words(found)}: {words}" for words, found in by_words.items())
        raise ValueError(
            f"the ranks have different streams of samples: {listed}. Call run.samples on every rank, with the same "
            "arguments in the same order"
        )


def _whole_number(value: Any) -> int:
    """Return a whole number of any type, such as numpy's; 0 for any other value, and for a truth value."""
    try:
        return 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return 0
