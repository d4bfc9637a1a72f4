"""A history of any length within a bound, seen from its beginning to its end."""

from hypothesis import given
from hypothesis import strategies as st

from muster.domain.thinned import MOST_POINTS, Point, Thinned


def points(first: int, last: int, every: int = 1) -> list[Point]:
    return [(step, 1 / step, 0.1) for step in range(first, last + 1, every)]


def test_a_short_history_is_whole() -> None:
    assert Thinned().with_points(points(1, 100)).points == tuple(points(1, 100))


def test_a_long_one_keeps_its_first_point_and_an_even_share_of_the_others() -> None:
    history = Thinned()
    for first in range(1, 10_001, 10):
        history = history.with_points(points(first, first + 9))
    steps = [point[0] for point in history.points]
    assert steps[0] == 1
    assert steps[1:] == list(range(history.stride, 10_001, history.stride))
    assert MOST_POINTS / 2 <= len(steps) <= MOST_POINTS


def test_what_falls_between_changes_nothing() -> None:
    history = Thinned().with_points(points(1, 1_000))
    assert history.stride > 1
    assert history.with_points([(1_001, 0.5, 0.1)]) is history


def test_a_step_reported_again_or_late_changes_nothing() -> None:
    history = Thinned().with_points(points(1, 20))
    assert history.with_points(points(5, 20)) is history


def test_steps_that_are_done_again_after_a_rollback_take_the_place_of_the_first() -> None:
    history = Thinned().with_points(points(1, 20)).with_points([(21, None, 0.1), (16, 3.0, 0.1), (17, 2.0, 0.1)])
    assert history.points == (*points(1, 15), (16, 3.0, 0.1), (17, 2.0, 0.1))


@given(st.lists(st.integers(0, 2**53 - 1), max_size=600), st.integers(1, 50))
def test_whatever_is_reported_in_whatever_pieces_stays_in_bound_and_order(steps: list[int], piece: int) -> None:
    history = Thinned()
    for start in range(0, len(steps), piece):
        history = history.with_points([(step, None, None) for step in steps[start : start + piece]])
        kept = [point[0] for point in history.points]
        assert len(kept) <= MOST_POINTS
        assert kept == sorted(set(kept))
        assert set(kept) <= set(steps)
