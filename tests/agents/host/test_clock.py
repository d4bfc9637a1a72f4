"""The host's clock against the server's, by the dates of answers."""

import random
from email.utils import formatdate

import pytest

from agents.host.clock import ClockSteps, ServerClock

START_MS = 1_790_000_000_000


def ask(clock: ServerClock, server_ms: int, *, offset_ms: int, away_ms: int = 20, kept_ms: int = 0) -> None:
    """One request that reaches the server at ``server_ms``, by a host so far ahead; its date was kept so long."""
    date = formatdate((server_ms - kept_ms) // 1000, usegmt=True)
    clock.saw(date, server_ms + offset_ms - away_ms, server_ms + offset_ms + away_ms)


@pytest.mark.parametrize("offset_ms", [-90_000, -300, 0, 40, 12_345])
@pytest.mark.parametrize("kept_ms", [0, 1_000])
def test_many_answers_report_the_offset_within_what_a_date_may_be_old_and_never_more_of_it(
    offset_ms: int, kept_ms: int
) -> None:
    clock, chance, at_ms = ServerClock(), random.Random(7), START_MS  # noqa: S311  # a test that repeats
    for _ in range(60):
        ask(clock, at_ms, offset_ms=offset_ms, kept_ms=round(chance.uniform(0, kept_ms)))
        at_ms += round(chance.uniform(9_000, 11_000))
    told_s = clock.offset_s()
    assert told_s is not None
    assert abs(told_s) <= abs(offset_ms) / 1000
    assert abs(offset_ms / 1000 - told_s) < 1.05


def test_equal_clocks_are_never_reported_as_apart() -> None:
    for kept_ms in range(0, 1_000, 50):
        clock = ServerClock()
        for number in range(20):
            ask(clock, START_MS + 9_990 * number, offset_ms=0, kept_ms=kept_ms)
            assert clock.offset_s() == 0


def test_one_answer_reports_of_an_offset_beyond_the_age_of_a_date() -> None:
    clock = ServerClock()
    assert clock.offset_s() is None
    ask(clock, START_MS + 400, offset_ms=7_000)
    assert clock.offset_s() == pytest.approx(5.4, abs=0.05)


def test_after_a_step_only_what_came_since_counts() -> None:
    clock = ServerClock()
    for number in range(20):
        ask(clock, START_MS + 9_900 * number, offset_ms=0)
    ask(clock, START_MS + 300_000, offset_ms=60_000)
    assert clock.offset_s() == pytest.approx(58, abs=0.05)


@pytest.mark.parametrize(
    "date", ["", "yesterday", "Mon, 99 Sep 2026 14:13:20 GMT", "Mon, 21 Sep 99999 14:13:20 GMT", "1" * 100_000, "\x00"]
)
def test_a_date_that_is_none_states_nothing(date: str) -> None:
    clock = ServerClock()
    clock.saw(date, START_MS, START_MS)
    assert clock.offset_s() is None


def test_an_answer_before_its_question_states_nothing() -> None:
    clock = ServerClock()
    clock.saw(formatdate(START_MS // 1000, usegmt=True), START_MS, START_MS - 1)
    assert clock.offset_s() is None


def test_a_slewed_clock_is_not_stepped_and_suspended_time_is_no_step() -> None:
    steps = ClockSteps()
    for number in range(100):
        steps.check(START_MS + 10_500 * number, 10_000 * number)
    assert steps.count == 0
    steps.check(START_MS, 2_000_000)
    assert steps.count == 1
