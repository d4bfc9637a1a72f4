"""When copies are compared: so often that it costs 0.5 % of the time, or as the program says."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from muster.train.parallel.ranks import Agreement  # noqa: E402  # it imports torch
from muster.train.values.copies import Copy  # noqa: E402
from muster.train.values.replica_check import ReplicaCheck, ReplicaError, require_every  # noqa: E402

BOTH = (0, 1)


class TwoAlike(Agreement):
    """A rank whose one neighbour sends what it sends; ``other`` changes what the neighbour has."""

    def __init__(self) -> None:
        super().__init__(0, 2, None)

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


class OneTensor:
    def __init__(self) -> None:
        self.values = torch.zeros(4)

    def groups(self) -> set[tuple[int, ...]]:
        return {BOTH}

    def __iter__(self) -> Iterator[Copy]:
        yield Copy("weight", BOTH, self.values, is_sure=True)


def checked_steps(every: int | None, *, cost_s: float, step_s: float, steps: int) -> list[int]:
    """Return the steps after which a rank of two compares. Each reading of the clock is ``cost_s`` later."""
    clock = itertools.count()
    copies: Any = OneTensor()
    check = ReplicaCheck(copies, TwoAlike(), every, now=lambda: next(clock) * cost_s)
    check.begin(0)
    found = []
    for step in range(1, steps + 1):
        copies.values += 1
        check.note_step(step_s)
        check.agree(check.figures(step))
        if check.agreed_step == step:
            found.append(step)
    return found


def test_a_check_may_cost_half_a_percent_of_the_time() -> None:
    assert checked_steps(None, cost_s=0.0095, step_s=0.2, steps=35) == [1, 11, 21, 31]
    assert checked_steps(None, cost_s=0.0005, step_s=0.2, steps=4) == [1, 2, 3, 4]
    assert checked_steps(None, cost_s=0.5, step_s=0.2, steps=600) == [1, 501]


def test_a_check_that_comes_every_two_seconds_takes_no_more_than_that_needs() -> None:
    assert checked_steps(None, cost_s=0.0029, step_s=0.2, steps=20) == [1, 7, 13, 19]  # 0.25 %
    assert checked_steps(None, cost_s=0.006, step_s=0.2, steps=35) == [1, 11, 21, 31]
    assert checked_steps(None, cost_s=0.0109, step_s=0.2, steps=35) == [1, 12, 23, 34]  # 0.5 %


def test_a_program_may_choose_how_often() -> None:
    assert checked_steps(3, cost_s=1.0, step_s=0.2, steps=10) == [3, 6, 9]
    assert checked_steps(0, cost_s=1.0, step_s=0.2, steps=10) == []
    for wrong in (-1, True, "often", 2.0):
        with pytest.raises(ValueError, match="a number of steps, 0 for never, or 'auto'"):
            require_every(wrong)  # type: ignore[arg-type]


def test_a_save_compares_unless_its_step_was_compared() -> None:
    copies: Any = OneTensor()
    check = ReplicaCheck(copies, TwoAlike(), 4)
    check.begin(0)
    check.before_save(2)
    assert check.agreed_step == 2
    check.agree(check.figures(4))
    copies.values += 1  # a change that a second comparison of this step would see
    check.before_save(4)
    assert check.agreed_step == 4


def test_highest_figures_that_do_not_match_are_a_fault_since_the_last_agreement() -> None:
    class OtherDiffers(TwoAlike):
        is_flipped = False

        def max(self, values: Any) -> list[int]:
            return [max(value, value + 1) if self.is_flipped else value for value in values]

        def gather(self, value: Any) -> list[Any]:
            if self.is_flipped and isinstance(value, tuple) and isinstance(value[1], bytes):
                return [value, (value[0], bytes(reversed(value[1])))]
            return [value, value]

    copies: Any = OneTensor()
    ranks = OtherDiffers()
    check = ReplicaCheck(copies, ranks, 4)
    check.begin(0)
    ranks.is_flipped = True
    with pytest.raises(ReplicaError) as caught:
        check.before_save(3)
    fault = caught.value.fault
    assert (fault.kind, fault.ranks, fault.tensor, fault.step, fault.since) == ("divergence", (), "weight", 3, 0)


def test_what_ranks_exchange_does_not_grow_with_the_number_of_ranks_in_a_group() -> None:
    """At the start a number for each group, and in a step that compares nothing the next check's step alone."""
    sent: list[Any] = []

    class Many(Agreement):
        def __init__(self) -> None:
            super().__init__(0, 10_000, None)

        def gather(self, value: Any) -> list[Any]:
            sent.append(value)
            return [value, (7, *value)]

    class OfAll(OneTensor):
        everyone = tuple(range(10_000))

        def groups(self) -> set[tuple[int, ...]]:
            return {self.everyone, self.everyone[::2]}

        def __iter__(self) -> Iterator[Copy]:
            yield Copy("weight", self.everyone, self.values, is_sure=True)

    copies: Any = OfAll()
    check = ReplicaCheck(copies, Many(), 4)
    check.begin(0)
    ((first, second),) = sent
    assert min(first, second) == 0
    assert [len(check.figures(step)) for step in (1, 2, 3)] == [1, 1, 1]
    assert len(check.figures(4)) == 1 + 2 * 3, "of three groups, one of them without this rank"
