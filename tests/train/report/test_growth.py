"""Memory that grows without end is reported once; what is only busy, or fills up at the start, is not."""

import random

from hypothesis import given
from hypothesis import strategies as st

from muster.train.report.growth import MAX_READINGS, MemoryGrowth, leak_in
from muster.train.report.wire import Channel

MIB = 1 << 20


class Received(Channel):
    def __init__(self) -> None:
        super().__init__(None)
        self.words: list[object] = []

    def send(self, kind: str, **fields: object) -> None:
        assert (kind, fields["code"]) == ("warning", "memory_growth")
        self.words.append(fields["message"])


def reported(assigned_mib: list[float], rank: int = 0) -> list[object]:
    heard, now = Received(), 0.0
    growth = MemoryGrowth(heard, rank, lambda: int(now * MIB))
    for step, now in enumerate(assigned_mib, 1):  # noqa: B007  # what is held now is looked at from within
        growth.take_reading(step)
    return heard.words


def test_a_leak_is_reported_once_with_its_rate_and_by_the_first_rank_alone() -> None:
    leaking = [1000.0 + 2 * step for step in range(1000)]
    words = reported(leaking)
    assert len(words) == 1
    assert "2,000.0 MiB in 1,000 steps" in str(words[0])
    assert reported(leaking, rank=1) == []


def test_a_slow_leak_is_reported_when_its_time_is_long_enough() -> None:
    assert reported([1000.0 + 0.02 * step for step in range(MAX_READINGS * 2)]) == []
    assert len(reported([1000.0 + 0.02 * step for step in range(MAX_READINGS * 70)])) == 1


@given(st.integers(0, 10**6), st.floats(0, 5_000), st.floats(0, 200))
def test_what_fills_up_at_the_start_and_then_is_only_busy_is_none(seed: int, filled: float, busy: float) -> None:
    chance = random.Random(seed)  # noqa: S311  # no secret
    start = [1000 + filled * step / 20 for step in range(20)]
    rest = [1000 + filled + (0.0 if number % 10 == 0 else chance.uniform(0, busy)) for number in range(2000)]
    assert reported(start + rest) == []


@given(st.floats(1.0, 100))
def test_nothing_hides_a_leak_of_a_share_of_what_is_on_hold(rate: float) -> None:
    chance = random.Random(7)  # noqa: S311  # no secret
    looks = [
        (step, int((1000 + rate * step * 1.3 + chance.uniform(0, rate * 5)) * MIB)) for step in range(MAX_READINGS)
    ]
    assert leak_in(looks)


def test_too_few_checks_state_nothing() -> None:
    assert leak_in([(step, step << 30) for step in range(5)]) == ""
