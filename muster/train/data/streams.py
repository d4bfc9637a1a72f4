"""Sample streams: named cursors over a data set, each a pure function of seed, name and position.

    stream = run.samples("train", len(data), batch_size=8)
    batches = iter(DataLoader(data, batch_sampler=stream, num_workers=4))
    for step in run.steps(total=1000):
        for _ in range(4):
            loss = train_one(run.model, next(batches))

Counted are the batches that came out of the iterator in a step, not the ones that the loader has read ahead
(``loader_batches``). A program that holds a batch ahead, drawn before its first step, draws one at a resume too: so
draws before the first step are not counted, and each later step counts as many as it trained on.

The counts of all ranks are compared in the exchange that each step makes. If ranks drew unequally often, one more
message reports how far each is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler, get_worker_info

from muster.train.data.samples import sample_at
from muster.train.data.segments import Division, Segment, without
from muster.train.runtime import rng

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from muster.train.data.segments import Range

MOST_APART = 4096
"""Draws that one rank may be behind another. What it has not drawn is listed in each checkpoint."""


@dataclass(frozen=True)
class Order:
    """What decides which sample has a number. A checkpoint's stream continues only in the same order."""

    name: str
    num_samples: int
    is_shuffled: bool
    seed: int

    def worker_seed(self, number: int) -> int:
        """Return the seed for a worker that reads the batch which begins with a number."""
        words = f"{self.seed} {self.name} {number}".encode()
        return int.from_bytes(hashlib.blake2b(words, digest_size=4).digest(), "little")

    def sample(self, number: int) -> int:
        """Return the sample of a number."""
        if self.is_shuffled:
            return sample_at(number, self.num_samples, f"{self.seed} {self.name}")
        return number % self.num_samples


@dataclass(frozen=True)
class Mark:
    """Where a stream stands in one attempt: small, since it shares the segment. ``draws``: one if all are equal."""

    left: tuple[tuple[int, int], ...]
    base: int
    draws: int | tuple[int, ...]
    num_drawn: int


class Batch(list[int]):
    """Samples of a draw. A loader's worker that receives them begins with random numbers that depend on them alone.

    ``seed``: of these random numbers. So random crops and masks that a worker makes are the same after a resume, with
    any number of workers.
    """

    seed = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (list(self), self.seed)


def _received(samples: list[int], seed: int) -> list[int]:
    if get_worker_info() is not None:
        rng.seed_rank(seed, 0)
    return samples


class Draws:
    """Iterator over the batches of one rank from a draw on. ``is_of_loader``: a loader reads it, perhaps ahead.

    ``num_stale``: batches that the loader has read ahead and that the program must not get, after a rollback.
    """

    def __init__(self, stream: SampleStream, first: int) -> None:
        self.is_of_loader = False
        self.num_stale = 0
        self.stream = stream
        self._first = self._next = first
        self._num_read_ahead = 0

    def __iter__(self) -> Draws:
        return self

    def __next__(self) -> list[int]:
        draw = self.stream.segment.next_draw(self._next, self.stream.place)
        if not self.stream.segment.is_of_one_epoch(self._first, draw):
            raise StopIteration
        self._next = draw + 1
        self._num_read_ahead += 1
        if not self.is_of_loader:
            self.count()
        return self.stream.batch(draw)

    def count(self) -> None:
        """Count a batch that the program took. Raises ValueError as ``SampleStream.count``."""
        self._num_read_ahead -= 1
        self.stream.count(self)

    def drop(self) -> None:
        """Leave out a batch that is stale."""
        self._num_read_ahead -= 1
        self.num_stale -= 1

    def move(self, draw: int) -> None:
        """Continue at another draw; what was read ahead is stale."""
        self._first = self._next = draw
        self.num_stale = self._num_read_ahead


class SampleStream(Sampler[list[int]]):
    """Cursor over a data set's samples, for ``DataLoader(batch_sampler=…)`` or by itself: ``draw`` or ``next(iter)``.

    ``draws``: the next draw of each place, as all ranks have agreed. ``num_drawn``: samples that all ranks have seen.
    """

    def __init__(self, order: Order, segment: Segment, place: int) -> None:
        self.order = order
        self.segment = segment
        self.place = place
        self.draws = [0] * len(segment.division.sizes)
        self.num_drawn = 0
        self.num_in_step = 0
        self._num_ahead = 0
        self._is_in_step = False
        self._is_used = False
        self._current: Draws | None = None

    @property
    def name(self) -> str:
        """Name of the stream in the run and in its checkpoints."""
        return self.order.name

    @property
    def epoch(self) -> int:
        """Epoch in which this rank's next batch begins, from 0."""
        return self.segment.epoch(self.segment.next_draw(self._next_draw, self.place))

    @property
    def epochs(self) -> float:
        """Epochs that this rank has drawn, with the part of the one in progress."""
        numbers = self.segment.numbers(self.segment.next_draw(self.draws[self.place], self.place), self.place)
        return numbers[0][0] / self.order.num_samples

    def __iter__(self) -> Iterator[list[int]]:
        """Return an iterator from the next batch on: endless, or to the end of the epoch."""
        if not self._is_used:
            self._num_ahead = 0  # the program read before its first step alone, such as to warm up
        self._is_used = False
        self._current = Draws(self, self.segment.next_draw(self._next_draw, self.place))
        return self._current

    def __len__(self) -> int:
        """Return the batches of an epoch. Raises TypeError for an endless stream, which has no length."""
        division = self.segment.division
        if division.is_endless:
            raise TypeError(f"the stream {self.name} is endless: it has no length")
        return division.num_draws(division.num_samples)

    def draw(self) -> list[int]:
        """Return this rank's next batch of samples; it may be called several times a step."""
        if self._current is None or self._current.is_of_loader:
            iter(self)
        try:
            return next(self._own())
        except StopIteration:
            iter(self)
            return next(self._own())

    def _own(self) -> Draws:
        if self._current is None:
            raise RuntimeError("a stream without an iterator was read")
        return self._current

    def batch(self, draw: int) -> list[int]:
        """Return the samples of this rank's draw."""
        ranges = self.segment.numbers(draw, self.place)
        batch = Batch(self.order.sample(number) for begin, end in ranges for number in range(begin, end))
        batch.seed = self.order.worker_seed(ranges[0][0]) if ranges else 0
        return batch

    def batches_in_step(self) -> list[list[int]]:
        """Return what this rank drew in the step in progress, without what it holds ahead."""
        draw, found = self.draws[self.place], []
        for _ in range(self.num_in_step):
            draw = self.segment.next_draw(draw, self.place)
            found.append(self.batch(draw))
            draw += 1
        return found

    def count(self, draws: Draws) -> None:
        """Count a batch that the program took. Raises ValueError if a newer iterator has begun."""
        if draws is not self._current:
            raise ValueError(
                f"the stream {self.name} is read by an older iterator, although a newer one has begun: some samples "
                "would be taken twice. Use one iterator at a time, or streams of two names"
            )
        if self._is_in_step:
            self.num_in_step += 1
            self._is_used = True
        else:
            self._num_ahead += 1

    def mark(self) -> Mark:
        """Return where the stream stands."""
        first = self.draws[0]
        draws = first if self.draws.count(first) == len(self.draws) else tuple(self.draws)
        return Mark(self.segment.left, self.segment.base, draws, self.num_drawn)

    def stand(self, at: Mark) -> None:
        """Stand at a mark; the program's iterator follows."""
        self.segment = Segment(self.segment.division, at.left, at.base)
        self.draws = [at.draws] * len(self.draws) if isinstance(at.draws, int) else list(at.draws)
        self.num_drawn, self.num_in_step = at.num_drawn, 0
        if self._current is not None:
            self._current.move(self.segment.next_draw(self._next_draw, self.place))

    @property
    def is_ahead(self) -> bool:
        """Whether the program holds a batch that it drew before its first step."""
        return self._num_ahead > 0

    def begin(self) -> None:
        """Begin a step: what is drawn from now on is counted."""
        self._is_in_step = True

    def end(self) -> int:
        """End a step, and return how many samples this rank drew in it."""
        self._is_in_step = False
        division = self.segment.division
        if division.is_endless:
            return self.num_in_step * division.sizes[self.place]
        return sum(map(len, self.batches_in_step()))

    @property
    def _next_draw(self) -> int:
        return self.segment.after(self.draws[self.place], self.place, self.num_in_step + self._num_ahead)

    def advance(self, numbers: Sequence[int]) -> None:
        """Count the draws of each place in the step that ended. Raises ValueError if a place falls too far behind."""
        for place, number in enumerate(numbers):
            self._advance_place(place, number)
        self.num_in_step = 0
        if max(self.draws) - min(self.draws) > MOST_APART:
            raise ValueError(
                f"the ranks draw unequally often from the stream {self.name}: one is {MOST_APART:,} draws behind. Draw "
                "equally often on all ranks, and give a rank that takes fewer samples a smaller batch: "
                "batch_size=[8, 8, 4], one number for each rank"
            )

    def advance_alike(self, number: int) -> None:
        """Count the draws of a step in which all places drew equally often. Raises ValueError as ``advance``."""
        draws = self.draws
        if self.segment.division.is_endless and min(draws) == max(draws):
            self.num_drawn += number * self.segment.division.batch
            self.draws = [draws[0] + number] * len(draws)
            self.num_in_step = 0
        elif number:
            self.advance([number] * len(draws))

    def _advance_place(self, place: int, number: int) -> None:
        draw = self.draws[place]
        for _ in range(number):
            draw = self.segment.next_draw(draw, place)
            self.num_drawn += sum(end - begin for begin, end in self.segment.numbers(draw, place))
            draw += 1
        self.draws[place] = draw

    def document(self) -> dict[str, Any]:
        """Return the state, as a manifest holds it."""
        division = self.segment.division
        return {
            "num_samples": self.order.num_samples,
            "shuffled": self.order.is_shuffled,
            "seed": self.order.seed,
            "endless": division.is_endless,
            "drops_last": division.drops_last,
            "sizes": list(division.sizes),
            "left": [list(each) for each in self.segment.left],
            "base": self.segment.base,
            "draws": list(self.draws),
            "num_drawn": self.num_drawn,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue where a checkpoint's stream stood, of the same or of another number of ranks.

        Raises:
            ValueError: its samples had another order.
        """
        self._require_order(saved)
        division = Division(saved["num_samples"], tuple(saved["sizes"]), saved["endless"], saved["drops_last"])
        left = tuple((begin, end) for begin, end in saved["left"])
        segment, self.num_drawn = Segment(division, left, saved["base"]), saved["num_drawn"]
        if division == self.segment.division:
            self.segment, self.draws = segment, list(saved["draws"])
        else:
            self.segment = Segment.of(self.segment.division, *segment.rest(saved["draws"]))

    def leave_out(self, gone: Sequence[Range]) -> None:
        """Take numbers out of what no place has drawn. If any of them is left, draws begin at 0 again."""
        division = self.segment.division
        rest = self.segment.rest(self.draws)
        kept = without(*rest, gone)
        if kept != rest:
            self.segment = Segment.of(division, *kept)
            self.draws = [0] * len(self.draws)

    def _require_order(self, saved: Mapping[str, Any]) -> None:
        here = (self.order.num_samples, self.order.is_shuffled, self.order.seed)
        there = (saved["num_samples"], saved["shuffled"], saved["seed"])
        for what, now, then in zip(("num_samples", "shuffle", "the seed of the run"), here, there, strict=True):
            if now != then:
                raise ValueError(
                    f"the stream {self.name} was saved with {what} {then} and has {now} now, which is another order of "
                    "samples: some would be taken twice and others never. Start the program as before, or give the "
                    "stream another name, under which it begins at its first sample"
                )
