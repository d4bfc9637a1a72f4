"""Joules of a span, from readings that lie about its borders."""

import pytest

from muster.domain.job.energy import Metered, metered


def test_a_span_between_readings_takes_its_share_of_each() -> None:
    points = [(0, 1000.0), (10_000, 2000.0), (20_000, 4000.0), (30_000, 4000.0)]
    assert metered(points, 5_000, 15_000) == Metered(500.0 + 1000.0, 10.0)
    assert metered(points, 0, 30_000) == Metered(3000.0, 30.0)


def test_what_lies_before_the_first_and_behind_the_last_reading_is_not_made_up() -> None:
    found = metered([(10_000, 0.0), (20_000, 700.0)], 0, 60_000)
    assert found == Metered(700.0, 10.0)


def test_a_counter_that_begins_again_is_stated_and_never_counted_backwards() -> None:
    found = metered([(0, 5000.0), (10_000, 6000.0), (20_000, 300.0), (30_000, 1300.0)], 0, 30_000)
    assert found == Metered(1000.0 + 300.0 + 1000.0, 30.0, is_partial=True)


@pytest.mark.parametrize("points", [[], [(0, 5.0)], [(0, 1.0), (1_000, 2.0)], [(90_000, 1.0), (95_000, 2.0)]])
def test_without_two_readings_of_the_span_nothing_is_known(points: list[tuple[int, float]]) -> None:
    assert metered(points, 10_000, 60_000) is None
