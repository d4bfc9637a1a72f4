"""Which rank computed otherwise, by the results that several ranks have of one micro-batch each."""

import random
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from muster.train.values.compute_judge import Computed, judge  # noqa: E402  # its package imports torch


def computed(num_ranks: int, shifts: tuple[int, ...], false: dict[tuple[int, int], int]) -> list[Computed]:
    """Return all results of a circle; ``false``: results by owner and rank that are not the right one, 0."""
    return [
        (owner, rank, false.get((owner, rank), 0))
        for shift in shifts
        for owner in range(num_ranks)
        for rank in [(owner + shift) % num_ranks]
    ]


def always(rank: int, num_ranks: int) -> dict[tuple[int, int], int]:
    """Return false results, another one of each micro-batch, of a rank that always computes wrong."""
    return {(owner, rank): 100 + owner for owner in range(num_ranks)}


def test_equal_results_show_nothing() -> None:
    assert judge(computed(3, (0, 1), {})) is None


@pytest.mark.parametrize("num_ranks", [3, 4, 7])
@pytest.mark.parametrize("shifts", [(0, 1), (0, 1, 2), (0, 2, 1)])
def test_a_rank_that_is_always_wrong_is_common_to_both_pairs(num_ranks: int, shifts: tuple[int, ...]) -> None:
    for rank in range(num_ranks):
        found = judge(computed(num_ranks, shifts, always(rank, num_ranks)))
        assert found is not None
        assert found.ranks == (rank,)


@pytest.mark.parametrize("pair", [(1, 1), (1, 2)])
def test_a_single_wrong_result_names_a_pair_and_the_third_rank_decides(pair: tuple[int, int]) -> None:
    first = judge(computed(4, (0, 1), {pair: 9}))
    assert first is not None
    assert (first.ranks, first.group) == ((), (1, 2))
    second = judge(computed(4, (0, 1, 2), {pair: 9}))
    assert second is not None
    assert second.ranks == (pair[1],)


def test_two_ranks_are_reported_as_a_pair() -> None:
    found = judge(computed(2, (0, 1), always(1, 2)))
    assert found is not None
    assert (found.ranks, found.group) == ((), (0, 1))


def test_two_wrong_ranks_are_both_named() -> None:
    false = always(1, 6) | always(4, 6)
    found = judge(computed(6, (0, 1, 2), false))
    assert found is not None
    assert found.ranks == (1, 4)


def test_ranks_that_all_differ_name_none() -> None:
    """As with a function that draws its own numbers, or depends on its rank."""
    draw = random.Random(1)  # noqa: S311  # the same results in each run
    each = [(owner, rank) for owner in range(5) for rank in range(5)]
    found = judge(computed(5, (0, 1, 2), {pair: draw.randrange(1, 1 << 60) for pair in each}))
    assert found is not None
    assert (found.ranks, found.group) == ((), (0, 1, 2, 3, 4))
    by_rank = judge(computed(5, (0, 1, 2), {(owner, rank): rank for owner, rank in each}))
    assert by_rank is not None
    assert by_rank.ranks == ()
    assert all(first < second for first, second in pairwise(by_rank.group))
