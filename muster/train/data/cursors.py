"""Everything that a run draws samples with: the cursor of ``sample_indices`` and the streams of ``samples``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster.train.data.samples import Samples
from muster.train.data.segments import Division
from muster.train.data.stream_set import Streams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from muster.train.data.streams import Mark, SampleStream
    from muster.train.parallel.ranks import Agreement

_NUM_FIGURES_OF_SAMPLES = 3


@dataclass(frozen=True)
class Place:
    """Where the next sample is. ``position``: by ``sample_indices``; ``streams``: the mark of each stream."""

    position: int
    streams: Mapping[str, Mark]

    def until(self, end: Place) -> str:
        """Return the samples from here to before ``end`` as text."""
        numbers = [f"samples {self.position:,} to {end.position - 1:,}"] if end.position > self.position else []
        moved = sorted(name for name, mark in end.streams.items() if mark != self.streams.get(name))
        return " and ".join([*numbers, *(f"the samples of stream {name}" for name in moved)])


class Cursors:
    """Cursors of one rank. ``begin``, ``advance`` and ``agree`` are called once a step, in this order.

    ``skipped``: the ranges that are left out, of earlier attempts too, as a record next to the checkpoints holds them.
    """

    def __init__(self, seed: int, place: int, num_places: int, *, is_shared: bool = False) -> None:
        self._indices = Samples(seed, place, num_places, is_shared=is_shared)
        self._streams = Streams(seed, place, num_places, is_shared=is_shared)
        self.share_of = self._indices.share_of
        self.skipped: list[Mapping[str, Any]] = []

    @property
    def position(self) -> int:
        """Samples that all ranks have seen by ``sample_indices``, as a manifest counts them."""
        return self._indices.position

    @property
    def num_seen(self) -> int:
        """Samples that all ranks have seen in any way."""
        return self._indices.position + self._streams.num_drawn

    @property
    def epochs(self) -> float | None:
        """Epochs that are done, with the part of the one in progress: of ``sample_indices``, else of a stream."""
        by_indices = self._indices.epochs
        return self._streams.epochs if by_indices is None else by_indices

    def resume(self, position: int, streams: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stood."""
        self._indices.position = position
        self._streams.saved = dict(streams)

    def roll_back(self, position: int, streams: Mapping[str, Any]) -> None:
        """Stand where a checkpoint stood, in the middle of an attempt. Iterators that the program has follow."""
        self._indices.position = position
        self._streams.roll_back(streams)

    def place(self) -> Place:
        """Return where the next sample of each kind is."""
        return Place(self._indices.position, self._streams.marks())

    @property
    def is_ahead(self) -> bool:
        """Whether the program holds a batch of any stream that it drew before its first step."""
        return self._streams.is_ahead

    def skip(self, first: Place, end: Place) -> None:
        """Leave out what was drawn between two places, when its turn comes."""
        self._indices.skip(first.position, end.position)
        streams = self._streams.skip(first.streams, end.streams)
        self.skipped.append({"first": first.position, "end": end.position, "streams": streams})

    def take_skipped(self, ranges: Sequence[Mapping[str, Any]]) -> None:
        """Leave out what earlier attempts skipped. Call it before ``resume`` and before any stream is requested."""
        for each in ranges:
            self._indices.skip(each["first"], each["end"])
            self._streams.take_skipped(each["streams"])
        self.skipped = list(ranges)

    def stream(
        self,
        name: str,
        num_samples: int,
        batch_size: int | Sequence[int],
        *,
        shuffle: bool,
        endless: bool,
        drop_last: bool,
    ) -> SampleStream:
        """Return the stream of that name. Raises ValueError, as ``Run.samples`` does."""
        if not name or not name.isprintable():
            raise ValueError(f"a stream needs a name, such as 'train', and got {name!r}")
        if type(num_samples) is not int or num_samples < 1:
            raise ValueError(f"num_samples {num_samples!r} must be a whole number, 1 or more")
        sizes = self._streams.sizes(batch_size)
        if drop_last and (endless or num_samples < sum(sizes)):
            raise ValueError(
                "drop_last leaves out the end of each epoch: it needs endless=False, and an epoch of as many samples "
                f"as all ranks take at once ({sum(sizes):,}; it has {num_samples:,})"
            )
        division = Division(num_samples, sizes, endless, drop_last)
        if not endless and any(first == last for first, last in map(division.share_of_epoch, range(len(sizes)))):
            raise ValueError(
                f"an epoch of {num_samples:,} samples is too short for {len(sizes):,} ranks: one would have none. "
                "Leave endless=False out, or use fewer ranks"
            )
        order = self._streams.order(name, num_samples, is_shuffled=shuffle)
        return self._streams.stream(order, division)

    def indices(self, num_samples: int, batch_size: int) -> list[int]:
        """Return this rank's samples of this step, as ``Run.sample_indices`` does."""
        return self._indices.indices(num_samples, batch_size)

    def begin(self) -> None:
        """Begin a step: samples that were drawn before it, such as to warm up, are not counted."""
        self._indices.begin()
        self._streams.begin()

    def advance(self) -> int | None:
        """End a step, and return this rank's number of samples; None: it drew none."""
        by_indices = self._indices.advance()
        by_streams = self._streams.end()
        return (by_indices or 0) + by_streams or None

    def figures(self) -> list[int]:
        """Return figures of the step that ended, of which all ranks take the highest, for ``agree``."""
        return [*self._indices.figures(), *self._streams.figures()]

    def agree(self, highest: Sequence[int], ranks: Agreement) -> None:
        """Take over what all ranks have drawn. Raises ValueError, on every rank, if that does not fit together."""
        self._indices.agree(highest[:_NUM_FIGURES_OF_SAMPLES], ranks)
        self._streams.agree(highest[_NUM_FIGURES_OF_SAMPLES:], ranks)

    def stream_states(self) -> dict[str, Any]:
        """Return the states of all streams, as a manifest holds them."""
        return self._streams.document()

    def step_samples(self) -> dict[str, list[int]]:
        """Return what this rank drew in the step, by stream; "" is ``sample_indices``. Call it before ``advance``."""
        by_stream = self._streams.batches_in_step()
        drawn = {name: [sample for batch in batches for sample in batch] for name, batches in by_stream.items()}
        return {"": self._indices.drawn, **drawn}
