"""Windows of ranks that changed their size at different times, compared by the same steps."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from watch.stragglers.alignment import MOST_SIZES, aligned, joined
from watch.stragglers.windows import RankWindows, Window


def with_sizes(rank: int, *sizes: int, begin: int = 0) -> RankWindows:
    """Return a rank with windows of these sizes, one after another."""
    windows = RankWindows(rank, 0)
    for size in sizes:
        assert begin % size == 0
        windows = windows.with_window(size, "", Window(begin, size, {"own_s": float(begin), "wait_s": 0.1}))
        begin += size
    return windows


def sizes_of(ranks: list[RankWindows]) -> dict[int, dict[int, int]]:
    return {rank: {first: each.size for first, each in windows.items()} for rank, windows in aligned(ranks).items()}


def test_smaller_windows_are_joined_where_half_of_the_larger_one_is_known() -> None:
    windows = [Window(first, 4, {"own_s": float(first)}, 4) for first in (0, 4, 16)]
    found = joined(windows, {8: {0, 16}})
    assert {first: (window.means["own_s"], window.size) for first, window in found.items()} == {
        0: (2.0, 8),
        16: (16.0, 8),
    }
    assert list(joined(windows, {16: {0, 16}})) == [0]


def test_ranks_that_change_the_size_at_different_times_are_compared_in_the_larger_windows_first() -> None:
    early, late = with_sizes(0, 16, 16, 4, 4, 4, 4), with_sizes(1, 16, 16, 16)
    assert sizes_of([early, late]) == {0: {0: 16, 16: 16, 32: 16}, 1: {0: 16, 16: 16, 32: 16}}
    both = [with_sizes(0, 16, 16, 4, 4, 4, 4, 4, 4), with_sizes(1, 16, 16, 16, 4, 4)]
    expected = {0: 16, 16: 16, 32: 16, 48: 4, 52: 4}
    assert sizes_of(both) == {0: expected, 1: expected}
    larger = [with_sizes(0, 4, 4, 4, 4, 16), with_sizes(1, 4, 4, 4, 4, 4, 4)]
    assert sizes_of(larger) == {rank: {0: 4, 4: 4, 8: 4, 12: 4, 16: 16} for rank in (0, 1)}


def test_a_rank_that_is_behind_gets_a_window_of_its_size_there() -> None:
    """Its window is open: its peers' smaller ones are not compared without it, and then again with it."""
    ahead = [with_sizes(rank, 16, 4, 4, 4) for rank in (0, 1)]
    assert sizes_of([*ahead, with_sizes(2, 16)]) == {0: {0: 16, 16: 16}, 1: {0: 16, 16: 16}, 2: {0: 16}}


def test_a_rollback_into_a_larger_window_drops_it() -> None:
    ranks = with_sizes(0, 16, 16, 4).with_window(4, "", Window(20, 4, {"own_s": 0.5}))
    assert [(each.first, each.size) for each in ranks.windows] == [(0, 16), (20, 4)]


def test_documents_hold_the_size_where_it_is_another_and_older_documents_have_none() -> None:
    ranks = with_sizes(3, 16, 16, 4)
    document = ranks.document()
    assert [each.get("size") for each in document["windows"]] == [16, 16, None]
    assert RankWindows.of_document(3, document) == ranks
    older = {"size": 8, "place": "", "windows": [{"first": 0, "steps": 8, "own_s": 0.2}]}
    grown = RankWindows.of_document(3, older).with_window(4, "", Window(8, 4, {"own_s": 0.5}))
    assert [(each.first, each.size) for each in grown.windows] == [(0, 8), (8, 4)]


def test_a_window_of_a_nonsense_size_is_left_out() -> None:
    odd = replace(with_sizes(0, 4, 4, begin=8 * MOST_SIZES), windows=(Window(0, 4, {"own_s": 1.0}, 8 * MOST_SIZES),))
    sane = with_sizes(1, 4, 4)
    assert aligned([sane, odd]) == {0: {}, 1: {each.first: each for each in sane.windows}}
    assert aligned([]) == {}


SIZES = st.lists(st.sampled_from([4, 4, 8, 16, 32]), min_size=1, max_size=20)


@given(st.lists(SIZES, min_size=1, max_size=5))
def test_each_window_counts_once_and_ranks_have_the_same_windows(drawn: list[list[int]]) -> None:
    ranks = [RankWindows(number, 0) for number in range(len(drawn))]
    for number, sizes in enumerate(drawn):
        begin = 0
        for size in sizes:
            begin = -(-begin // size) * size  # the steps between were not measured
            window = Window(begin, size, {"own_s": float(begin), "wait_s": 0.1})
            ranks[number] = ranks[number].with_window(size, "", window)
            begin += size
    found = aligned(ranks)
    of_all: dict[int, int] = {}
    for rank, windows in found.items():
        assert sum(each.num_steps for each in windows.values()) <= sum(each.num_steps for each in ranks[rank].windows)
        for first, window in windows.items():
            assert window.first == first
            assert of_all.setdefault(first, window.size) == window.size
        for each in ranks[rank].windows:
            over = [
                window for window in windows.values() if window.first < each.last_step and each.first < window.last_step
            ]
            assert len(over) <= 1, "a pause makes one window slow"
            assert all(window.first <= each.first and each.last_step <= window.last_step for window in over)
    spans = sorted(of_all.items())
    assert all(first + size <= following for (first, size), (following, _) in pairwise(spans))
