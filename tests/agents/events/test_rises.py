"""Counters as rises."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from agents.events.rises import WINDOWS, Rise, RiseTeller


def test_what_is_counted_at_the_start_is_no_rise() -> None:
    assert RiseTeller().rise({"crc_errors": 5_000}, 0) is None


def test_a_rise_is_reported_with_the_time_that_it_took_and_without_what_stood_still() -> None:
    teller = RiseTeller()
    teller.rise({"crc_errors": 5, "replays": 1}, 0)
    assert teller.rise({"crc_errors": 5, "replays": 1}, 60) is None
    assert teller.rise({"crc_errors": 9, "replays": 1}, 121) == Rise({"crc_errors": 4}, 61)


def test_what_stands_next_to_is_a_rise_and_makes_no_window_a_bad_one() -> None:
    teller = RiseTeller(alongside=frozenset({"symbol_errors"}))
    teller.rise({"symbol_errors": 0, "replays": 0}, 0)
    assert teller.rise({"symbol_errors": 9, "replays": 0}, 60) == Rise({"symbol_errors": 9}, 60)
    assert teller.num_bad_windows == 0
    teller.rise({"symbol_errors": 12, "replays": 1}, 120)
    assert teller.num_bad_windows == 1


def test_a_counter_that_fell_was_reset_and_its_window_begins_again() -> None:
    teller = RiseTeller()
    teller.rise({"crc_errors": 100}, 0)
    assert teller.rise({"crc_errors": 3}, 60) is None
    assert teller.fell == {"crc_errors"}
    assert teller.rise({"crc_errors": 5}, 120) == Rise({"crc_errors": 2}, 60)
    assert teller.fell == frozenset(), "of the newest look alone"


def test_one_that_could_not_be_read_has_not_fallen() -> None:
    teller = RiseTeller()
    teller.rise({"a": 5, "b": 5}, 0)
    teller.rise({"b": 6}, 60)
    assert teller.fell == frozenset()
    teller.rise({"a": 1, "b": 7}, 120)
    assert teller.fell == {"a"}


def test_a_counter_that_could_not_be_read_in_between_rose_in_a_longer_time() -> None:
    teller = RiseTeller()
    teller.rise({"a": 1, "b": 1}, 0)
    teller.rise({"b": 1}, 60)
    assert teller.rise({"a": 4, "b": 2}, 120) == Rise({"a": 3, "b": 1}, 120)


def test_a_counter_that_appears_later_begins_there() -> None:
    teller = RiseTeller()
    teller.rise({"a": 1}, 0)
    assert teller.rise({"a": 1, "b": 700}, 60) is None


def test_bad_windows_are_those_of_the_last_half_hour() -> None:
    teller = RiseTeller()
    count = 0
    for window in range(1 + WINDOWS):
        count += window % 2
        teller.rise({"crc_errors": count}, 60 * window)
    assert teller.num_bad_windows == WINDOWS // 2
    for window in range(WINDOWS):
        teller.rise({"crc_errors": count}, 10_000 + 60 * window)
    assert teller.num_bad_windows == 0


@given(st.lists(st.integers(min_value=0, max_value=1_000_000), min_size=1, max_size=60))
def test_rises_never_exceed_what_was_counted_and_none_is_notified_of_a_reset(counts: list[int]) -> None:
    teller, told = RiseTeller(), 0.0
    for number, count in enumerate(counts):
        rise = teller.rise({"n": count}, 60 * number)
        is_up = number > 0 and count > counts[number - 1]
        assert (rise is not None) == is_up
        told += rise.by["n"] if rise is not None else 0
    assert told == sum(max(0, now - before) for before, now in itertools.pairwise(counts))
