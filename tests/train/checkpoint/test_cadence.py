"""When a checkpoint is due: each so many steps, or by the measured stall; the same step on every rank."""

from itertools import pairwise

import pytest

from muster.train.checkpoint.cadence import Cadence, require_cadence
from muster.train.checkpoint.interval import IntervalRule, daly_s
from muster.train.report.wire import Channel
from tests.hand_clock import HandClock


class Rank:
    """A training of which each step takes a second."""

    def __init__(self, rule: IntervalRule, every: int | str = "auto") -> None:
        self.clock = HandClock(100.0)
        self.rule = rule
        self.cadence = Cadence(every, rule, Channel(None), rank=0, num_ranks=4, now=self.clock)
        self.step = 0

    def train(self, num_steps: int, *, stall_s: float, save_s: float) -> list[int]:
        """The steps behind which it saved."""
        saved: list[int] = []
        for _ in range(num_steps):
            self.clock.now_s += 1.0
            self.step += 1
            self.cadence.note_step(1.0)
            has_saved = bool(saved) or self.step > 50
            if self.cadence.agree(self.step, self.cadence.figures(self.step, save_s * has_saved), is_busy=False):
                saved.append(self.step)
                with self.cadence.stalling():
                    self.clock.now_s += stall_s
        return saved


def test_a_number_of_steps_is_that_number() -> None:
    assert Rank(IntervalRule(), every=4).train(12, stall_s=9.0, save_s=99.0) == [4, 8, 12]
    assert Rank(IntervalRule(), every=0).train(12, stall_s=9.0, save_s=99.0) == []


def test_the_first_comes_after_the_minimum_and_the_next_as_its_stall_states() -> None:
    rule = IntervalRule(failures_per_gpu_hour=0.9 / 4, min_s=10.0, max_s=1e6)  # of 4 GPUs, one in 4,000 s
    saved = Rank(rule).train(1000, stall_s=2.0, save_s=5.0)
    assert saved[0] == 10
    gap_s = daly_s(2.0, 4000.0)
    assert gap_s == pytest.approx(125.2, abs=0.1)
    gaps = [later - earlier for earlier, later in pairwise(saved)]
    assert len(gaps) > 5
    assert all(abs(gap - gap_s) <= 1 for gap in gaps), "to the nearest step"


def test_a_save_that_takes_long_is_not_overtaken() -> None:
    rule = IntervalRule(failures_per_gpu_hour=0.9 / 4, min_s=10.0, max_s=1e6)
    saved = Rank(rule).train(1500, stall_s=2.0, save_s=300.0)
    assert {later - earlier for earlier, later in pairwise(saved[1:])} <= {297, 298, 299}
    rank = Rank(rule)
    rank.clock.now_s += 1000
    assert not rank.cadence.agree(1, [1, 0, 0, 0], is_busy=True), "one is still in progress somewhere"
    assert rank.cadence.agree(1, [1, 0, 0, 0], is_busy=False)


def test_the_first_stall_is_forgotten_once_there_is_another() -> None:
    """It touches memory that the later ones have again."""
    rank = Rank(IntervalRule())
    for stall_s in (60.0, 1.0, 1.0):
        with rank.cadence.stalling():
            rank.clock.now_s += stall_s
    assert rank.cadence.figures(5, 1.0)[1] == 1_000_000


def near(rank: Rank, num_steps: int) -> list[int]:
    """The steps behind which there is to be room for a copy soon."""
    found = []
    for _ in range(num_steps):
        rank.train(1, stall_s=0.0, save_s=0.0)
        if rank.cadence.is_near(rank.step, 1000):
            found.append(rank.step)
    return found


def test_a_checkpoint_is_near_some_seconds_before_it_is_due_and_never_before_a_first_step() -> None:
    for every in (0, 20, "auto"):
        assert not Rank(IntervalRule(), every).cadence.is_near(0, 1000)
    assert near(Rank(IntervalRule(), every=0), 100) == []
    assert near(Rank(IntervalRule(), every=40), 40)[0] == 40 - 15
    assert near(Rank(IntervalRule(min_s=30.0)), 29)[0] == 30 - 15


def test_of_long_steps_the_one_before_is_near() -> None:
    rank = Rank(IntervalRule(), every=3)
    for step in (1, 2):
        rank.cadence.note_step(100.0)
        assert rank.cadence.is_near(step, 3) == (step == 2)
        assert not rank.cadence.is_near(step, 2), "training ends before it"


@pytest.mark.parametrize("every", ["often", -1, 2.5, None, True])
def test_what_is_no_cadence_is_refused_by_name(every: object) -> None:
    with pytest.raises(ValueError, match=r"checkpoint_every=.*must be a number of steps, 0 or more, or 'auto'"):
        require_cadence(every)


def test_what_was_loaded_before_the_first_step_is_no_training_time() -> None:
    rank = Rank(IntervalRule(failures_per_gpu_hour=0.9 / 4, min_s=10.0, max_s=1e6))
    rank.clock.now_s += 500.0
    rank.cadence.begin()
    assert rank.train(5, stall_s=1.0, save_s=1.0) == []
    rank.cadence.begin()
    assert rank.train(6, stall_s=1.0, save_s=1.0) != [], "a second beginning, such as of an epoch, changes nothing"
