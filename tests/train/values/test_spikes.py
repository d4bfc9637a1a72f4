"""Spikes of losses and gradient norms: robust, by their logarithm, after a warm-up."""

import math
import random

import pytest

pytest.importorskip("torch")

from muster.train.values.spikes import PERSISTENT, WARM_UP, Series, Spikes  # its package imports torch


def spiking_steps(values: list[float], what: str = "loss") -> list[int]:
    series = Series(what)
    return [step for step, value in enumerate(values) if series.note(step, value) is not None]


def noisy(number: int, *, seed: int = 1, level: float = 2.0) -> list[float]:
    draw = random.Random(seed)  # noqa: S311  # the same values in each run
    return [level * math.exp(draw.gauss(0, 0.05)) for _ in range(number)]


@pytest.mark.parametrize("level", [10.0, 0.01])
def test_a_value_far_above_the_newest_is_one_at_any_level(level: float) -> None:
    values = noisy(60, level=level)
    assert spiking_steps([*values, 4 * level, *values]) == [60]


def test_none_of_ten_thousand_usual_values_is_one() -> None:
    falling = [value * (1 + 5 * math.exp(-step / 200)) for step, value in enumerate(noisy(5_000, seed=2))]
    assert spiking_steps(falling) == []
    assert spiking_steps(noisy(5_000, seed=3), "grad_norm") == []


def test_the_first_values_and_low_ones_are_none() -> None:
    assert spiking_steps([1.0] * (WARM_UP - 1) + [100.0]) == []
    assert spiking_steps([1.0] * 40 + [1e-6, 0.0]) == []


def test_losses_below_zero_are_compared_as_they_are() -> None:
    values = [value - 4 for value in noisy(60)]
    assert spiking_steps([*values, 3.0]) == [60]


def test_a_higher_level_without_an_end_becomes_the_usual_one() -> None:
    values = [*noisy(60), *noisy(200, level=20.0)]
    assert spiking_steps(values) == list(range(60, 60 + PERSISTENT))


def test_the_highest_of_all_ranks_counts_and_a_rollback_forgets() -> None:
    spikes = Spikes()
    for step in range(40):
        assert spikes.agree(step, Spikes.figures(2.0 + step % 3 / 10, None)) == []
    begun: int | None = spikes.onset
    assert begun is None
    highest = [max(both) for both in zip(Spikes.figures(2.1, None), Spikes.figures(50.0, -1.5), strict=True)]
    (spike,) = spikes.agree(40, highest)
    assert (spike.what, spike.step, spike.value) == ("loss", 40, 50.0)
    assert str(spike) == "the loss is 50 at step 40, and was 2.1 before"
    assert (spikes.onset, spikes.last_step) == (40, 40)
    spikes.agree(41, Spikes.figures(None, None))
    assert spikes.onset == 40, "a step without a value ends nothing"
    spikes.agree(42, Spikes.figures(None, -1.5))
    assert spikes.onset == 40, "a usual norm does not end a row of losses"
    spikes.agree(43, Spikes.figures(2.1, None))
    ended: int | None = spikes.onset
    assert ended is None
    assert spikes.last_step == 40
    spikes.forget(30)
    assert spikes.last_step == 30


def test_a_row_of_seldom_reported_losses_begins_at_its_first_one() -> None:
    """The loss is reported each tenth step, the norm each step. The level of the loss rises at step 410."""
    spikes = Spikes()
    found = []
    for step in range(1, 410 + 10 * PERSISTENT):
        loss = (2.0 if step < 410 else 20.0) if step % 10 == 0 else None
        found += [(step, spikes.onset) for _ in spikes.agree(step, Spikes.figures(loss, 1.0 + step % 3 / 10))]
    assert [step for step, _ in found] == list(range(410, 410 + 10 * PERSISTENT, 10))
    assert {onset for _, onset in found[:-1]} == {410}


def test_a_rollback_ends_the_row_and_the_next_one_has_its_own_beginning() -> None:
    spikes = Spikes()
    for step in range(40):
        spikes.agree(step, Spikes.figures(2.0 + step % 3 / 10, None))
    spikes.agree(40, Spikes.figures(50.0, None))
    spikes.forget(38)
    forgotten: int | None = spikes.onset
    assert forgotten is None
    (again,) = spikes.agree(41, Spikes.figures(50.0, None))
    assert (again.length, again.onset, spikes.onset) == (1, 41, 41)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-300, -1e300, 2.5, -2.5])
def test_figures_keep_the_order_of_the_values(value: float) -> None:
    others = [-3.0, -1e-9, 1e-9, 3.0]
    for other in others:
        (own, _), (theirs, _) = Spikes.figures(value, None), Spikes.figures(other, None)
        assert (own < theirs) is (value < other)
    assert Spikes.figures(math.nan, math.inf) == Spikes.figures(None, None)
