"""Whatever ranks draw, and however their number changes, no number is drawn twice and none is left out."""

import json
import random
from collections import Counter

import pytest

from muster.train.data.cursors import Cursors
from muster.train.data.segments import Division, Segment
from muster.train.data.streams import SampleStream
from tests.scaled import examples


class Gang:
    """Ranks in one process: their figures are compared as an exchange would."""

    def __init__(
        self, num_ranks: int, saved: dict[str, object], *, num_samples: int, is_endless: bool, sizes: list[int]
    ) -> None:
        self.world_size = num_ranks
        self.num_messages = 0
        self.cursors = [Cursors(7, rank, num_ranks) for rank in range(num_ranks)]
        self.streams: list[SampleStream] = []
        for each in self.cursors:
            each.resume(0, saved)
            self.streams.append(
                each.stream("train", num_samples, sizes, shuffle=True, endless=is_endless, drop_last=False)
            )

    def gather(self, _value: object) -> list[object]:
        """Answer the gather of any rank."""
        self.num_messages += 1
        return [(rank, [stream.num_in_step]) for rank, stream in enumerate(self.drawn)]

    def step(self, numbers: list[int]) -> list[int]:
        """Let each rank draw so many batches, and agree. Returns the samples."""
        for each in self.cursors:
            each.begin()
        seen = [
            sample
            for stream, number in zip(self.streams, numbers, strict=True)
            for _ in range(number)
            for sample in stream.draw()
        ]
        for each in self.cursors:
            each.advance()
        figures = [each.figures() for each in self.cursors]
        highest = [max(column) for column in zip(*figures, strict=True)]
        self.drawn = [_Drawn(stream.num_in_step) for stream in self.streams]
        for each in self.cursors:
            each.agree(highest, self)  # type: ignore[arg-type]
        return seen


class _Drawn:
    def __init__(self, num_in_step: int) -> None:
        self.num_in_step = num_in_step


@pytest.mark.parametrize("seed", range(examples(2000, quick=60)))
def test_any_history_of_draws_and_ranks_leaves_exactly_the_rest(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # the same in every run
    num_samples, is_endless = chance.randint(20, 90), chance.random() < 0.5
    saved: dict[str, object] = {}
    seen: list[int] = []
    gang: Gang | None = None
    for _ in range(4):
        num_ranks = chance.randint(1, 4)
        sizes = [chance.randint(1, 5) for _ in range(num_ranks)]
        gang = Gang(num_ranks, saved, num_samples=num_samples, is_endless=is_endless, sizes=sizes)
        for _ in range(chance.randint(0, 5)):
            number = chance.randint(0, 3)
            seen += gang.step([number if chance.random() < 0.8 else chance.randint(0, 3) for _ in range(num_ranks)])
        states = [each.stream_states() for each in gang.cursors]
        assert states == [states[0]] * num_ranks
        saved = json.loads(json.dumps(states[0]))
    assert gang is not None
    stream = gang.streams[0]
    left, base = stream.segment.rest(stream.draws)
    rest = [stream.order.sample(number) for begin, end in left for number in range(begin, end)]
    assert Counter(seen + rest) == Counter(stream.order.sample(number) for number in range(base))
    assert stream.num_drawn == len(seen)


def test_equal_draws_need_no_message_of_their_own() -> None:
    gang = Gang(4, {}, num_samples=100, is_endless=True, sizes=[8, 8, 4, 4])
    for _ in range(3):
        gang.step([2, 2, 2, 2])
    assert gang.num_messages == 0
    gang.step([2, 2, 2, 1])
    assert gang.num_messages == 4, "one on each rank"


def test_an_epoch_ends_with_a_part_for_each_rank_or_without_it() -> None:
    whole = Segment.of(Division(10, (2, 2), is_endless=False))
    assert [whole.numbers(draw, 1) for draw in range(4)] == [[(2, 4)], [(6, 8)], [(9, 10)], [(12, 14)]]
    assert whole.is_of_one_epoch(0, 2)
    assert not whole.is_of_one_epoch(2, 3)
    cut = Segment.of(Division(10, (2, 2), is_endless=False, drops_last=True))
    assert [cut.numbers(draw, 0) for draw in range(3)] == [[(0, 2)], [(4, 6)], [(10, 12)]]
    assert [cut.epoch(draw) for draw in range(3)] == [0, 0, 1]
