"""The spread of a figure over the ranks, and the ranks that stand alone."""

import math
import random

import pytest

from muster.domain.spread import Figure, odd_ranks, spread, spread_of


def test_a_slow_rank_stands_alone_by_its_own_compute_and_its_small_wait() -> None:
    own = {0: 0.100, 1: 0.101, 2: 0.125, 3: 0.099}
    wait = {0: 0.026, 1: 0.025, 2: 0.001, 3: 0.027}

    found = spread({Figure.WAIT: wait, Figure.OWN: own})

    assert [each.figure for each in found] == [Figure.OWN, Figure.WAIT]
    assert found[0].highest == (0.125, 2)
    assert found[0].lowest == (0.099, 3)
    assert found[0].odd[0].ratio == pytest.approx(1.25)
    assert odd_ranks(found) == {2: (Figure.OWN, Figure.WAIT)}


def test_a_rank_is_compared_with_its_own_place_alone() -> None:
    own = {rank: 0.1 if rank < 4 else 0.3 for rank in range(8)}
    places = {rank: f"stage={rank // 4}" for rank in range(8)}

    assert spread_of(Figure.OWN, own, places).odd == ()  # type: ignore[union-attr]
    assert spread_of(Figure.OWN, {**own, 5: 0.4}, places).odd[0].rank == 5  # type: ignore[union-attr]


def test_of_two_ranks_none_stands_alone() -> None:
    found = spread_of(Figure.POWER, {0: 300.0, 1: 700.0})

    assert found is not None
    assert found.odd == ()
    assert found.variation == pytest.approx(0.4)


def test_a_figure_without_a_worse_side_marks_a_rank_and_accuses_none() -> None:
    found = spread({Figure.POWER: {0: 500.0, 1: 510.0, 2: 505.0, 3: 300.0}})

    assert [odd.rank for odd in found[0].odd] == [3]
    assert odd_ranks(found) == {}


def test_values_that_are_no_figures_are_left_out() -> None:
    own = {0: 0.1, 1: math.nan, 2: math.inf, 3: None, 4: 1e300, 5: 0.1}

    found = spread_of(Figure.OWN, own)

    assert found is not None
    assert found.num_ranks == 2
    assert spread_of(Figure.OWN, {0: 0.1, 1: None}) is None


@pytest.mark.parametrize("num_ranks", [3, 4, 64, 1000])
def test_noise_alone_marks_few_ranks_and_a_slow_one_is_always_marked(num_ranks: int) -> None:
    rng = random.Random(num_ranks)  # noqa: S311  # noise
    own = {rank: rng.gauss(0.2, 0.002) for rank in range(num_ranks)}
    assert spread_of(Figure.OWN, own).odd == ()  # type: ignore[union-attr]

    slow = spread_of(Figure.OWN, {**own, 1: 0.25})

    assert slow is not None
    assert [odd.rank for odd in slow.odd] == [1]
