"""Slow ranks of a gang by arrays are the ranks that the rule of the spread finds one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from control.jobs.gang_times import slow_among
from muster.domain.robust import LARGE_GROUP
from muster.domain.spread import Figure, spread_of

OWN_S = st.none() | st.floats(0.5, 4.0).map(lambda value: round(value, 2))


@settings(max_examples=60, deadline=None)
@given(st.lists(OWN_S, min_size=1, max_size=6), st.integers(LARGE_GROUP + 1, LARGE_GROUP + 40), st.floats(0.0, 0.2))
def test_slow_ranks_of_a_large_group_are_as_the_rule_decides(odd: list[float | None], size: int, noise: float) -> None:
    usual = [1.0 + noise * (rank % 7) / 7 for rank in range(size)]
    own_s = [*odd, *usual]
    found = spread_of(Figure.OWN, dict(enumerate(own_s)))
    assert found is not None
    by_rule = {each.rank for each in found.odd if each.is_worse}
    by_arrays = np.flatnonzero(slow_among(np.array([np.nan if each is None else each for each in own_s])))
    assert set(by_arrays.tolist()) == by_rule
