"""Sketches: within one per cent of the exact percentile, and the same in whichever order they are merged."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.figures.sketch import ERROR, LEAST, ZERO, Sketch, merged, sketch_of

values = st.floats(min_value=0, max_value=1e9, allow_nan=False)
lists = st.lists(values, max_size=40)


@given(lists.filter(bool), st.floats(min_value=0, max_value=1))
def test_a_percentile_is_within_the_error_of_the_exact_one(found: list[float], share: float) -> None:
    exact = sorted(found)[math.floor(share * (len(found) - 1))]
    told = sketch_of(found).percentile(share)
    assert told is not None
    assert abs(told - exact) <= exact * ERROR * (1 + 1e-9) + LEAST


@given(lists, lists, lists)
def test_merging_is_associative_and_commutative(one: list[float], two: list[float], three: list[float]) -> None:
    a, b, c = sketch_of(one), sketch_of(two), sketch_of(three)
    assert merged([a, b]) == merged([b, a])
    assert merged([merged([a, b]), c]) == merged([a, merged([b, c])]) == sketch_of([*one, *two, *three])
    assert merged([a, Sketch()]) == a


@given(lists.filter(bool))
def test_it_knows_the_number_and_the_extremes(found: list[float]) -> None:
    told = sketch_of(found)
    assert (told.num, told.least, told.most) == (len(found), min(found), max(found))
    assert told.percentile(1) == pytest.approx(max(found), rel=ERROR * 1.001, abs=LEAST)


def test_percentiles_of_known_values() -> None:
    told = sketch_of([float(number) for number in range(1, 1_001)])
    assert told.percentile(0.5) == pytest.approx(500, rel=ERROR)
    assert told.percentile(0.99) == pytest.approx(990, rel=ERROR)
    assert len(told.buckets) < 350, "a thousand values in far fewer buckets"


def test_zero_has_a_bucket_of_its_own() -> None:
    told = sketch_of([0.0, 0.0, 7.0])
    assert told.percentile(0.5) == 0.0
    assert told.buckets[0] == ZERO


def test_no_value_has_no_percentile() -> None:
    assert Sketch().percentile(0.5) is None
    with pytest.raises(ValueError, match="0 to 1"):
        sketch_of([1.0]).percentile(95)


def test_an_array_has_the_sketch_of_its_values() -> None:
    assert sketch_of(np.array([0.0, 1e-12, 0.5, 0.5])) == Sketch((ZERO, -34), (2, 2), 0.0, 0.5)
    assert sketch_of(np.array([])) == sketch_of([]) == Sketch()


@pytest.mark.parametrize("value", [-1e-12, -5.0, math.inf, math.nan])
def test_a_value_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="no finite value of 0 or more"):
        sketch_of([1.0, value])
