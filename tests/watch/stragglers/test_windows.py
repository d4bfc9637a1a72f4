"""Windows of steps, folded from reports of pace."""

from typing import Any

import pytest

from watch.stragglers.alignment import joined
from watch.stragglers.windows import MOST_WINDOWS, Folding, RankWindows, Window, size_of

WINDOW_S = 10.0


def pace(own_s: float = 0.5, num_steps: int = 4, **more: Any) -> dict[str, Any]:
    return {"own_s": own_s, "wait_s": 0.0, "own_steps": num_steps, "num_steps": num_steps, **more}


def test_windows_begin_at_multiples_of_their_size_whatever_the_reports_cover() -> None:
    state, closed = Folding(), []
    for step in range(3, 120, 3):
        state, window = state.with_pace(step, pace(num_steps=3), WINDOW_S)
        closed += [] if window is None else [window]
    assert state.size == size_of(0.5, WINDOW_S) == 32
    assert [window.first for window in closed] == [0, 32, 64]
    assert [window.num_steps for window in closed] == [30, 33, 33]


def test_means_are_weighted_by_steps_and_work_counts_padding() -> None:
    state, _ = Folding().with_pace(4, pace(0.4, 1, tokens_per_step=900.0, padding=0.1), WINDOW_S)
    state, _ = state.with_pace(8, pace(0.8, 3, tokens_per_step=500.0, padding=0.5), WINDOW_S)
    assert state.window is not None
    assert state.window.means["own_s"] == pytest.approx(0.7)
    assert state.window.means["work"] == pytest.approx(1000.0)


def test_a_rollback_drops_the_windows_that_are_trained_again() -> None:
    ranks = RankWindows(0, 4)
    for first in (0, 4, 8, 4):
        ranks = ranks.with_window(4, "", Window(first, 4, {"own_s": 0.5}))
    assert [window.first for window in ranks.windows] == [0, 4]


def test_windows_get_another_size_once_steps_take_another_time() -> None:
    state = Folding()
    sizes = []
    for number in range(1, 60):
        state, window = state.with_pace(4 * number, pace(0.5 if number < 20 else 8.0), WINDOW_S)
        sizes += [] if window is None else [state.size]
    assert sizes[0] == 32
    assert sizes[-1] == 4


def test_a_long_wait_for_another_rank_does_not_change_the_size() -> None:
    state, _ = Folding().with_pace(8, pace(), WINDOW_S)
    state, _ = state.with_pace(12, {**pace(), "wait_s": 3600.0}, WINDOW_S)
    state, window = state.with_pace(40, pace(), WINDOW_S)
    assert window is not None
    assert (window.means["wait_s"], state.size) == (0.25, 32)


def test_one_pause_does_not_lengthen_the_steady_own_compute_of_a_window() -> None:
    state = Folding()
    for number, own_s in enumerate((0.5, 0.7, 3.0, 0.5)):
        state, _ = state.with_pace(2 * number + 2, pace(own_s, num_steps=2), WINDOW_S)
    window = state.window
    assert window is not None
    assert window.means["own_s"] == pytest.approx(1.175)
    assert window.steady_own_s == pytest.approx((0.5 + 0.7 + 0.5) / 3)
    assert Window.of_document(window.document()).steady_own_s == pytest.approx(window.steady_own_s)
    later = Window(8, 8, {"own_s": 1.0, "longest_own_s": 5.0, "longest_steps": 1.0}, 8)
    (larger,) = joined((window.sized(8), later), {16: {0}}).values()
    assert larger.steady_own_s == pytest.approx((8 * 1.175 + 8 * 1.0 - 5.0) / 15), "the longest of both is left out"


@pytest.mark.parametrize("num_steps", [[4], [6, 2]])
def test_a_window_without_several_reports_is_as_steady_as_it_is(num_steps: list[int]) -> None:
    state, step = Folding(), 0
    for number, steps in enumerate(num_steps):
        step += steps
        state, _ = state.with_pace(step, pace(2.0 - number, num_steps=steps), WINDOW_S)
    assert state.window is not None
    assert state.window.steady_own_s == state.window.means["own_s"]


def test_documents_hold_it_all_and_windows_are_bounded() -> None:
    ranks = RankWindows(3, 4, "data ranks of 0")
    for first in range(0, 400, 4):
        ranks = ranks.with_window(4, ranks.place, Window(first, 4, {"own_s": 0.5, "gc_s": 0.1}))
    assert len(ranks.windows) == MOST_WINDOWS
    assert RankWindows.of_document(3, ranks.document()) == ranks
    state, _ = Folding().with_pace(4, pace(place="x" * 500), WINDOW_S)
    assert Folding.of_document(state.document()) == state
    assert len(state.place) == 64


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e9])
def test_any_step_time_has_a_size(size: float) -> None:
    assert 4 <= size_of(size, WINDOW_S) <= 1 << 24
