"""The interval that costs the least: Young's and Daly's, within the policy's bounds, never shorter than a save."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.train.checkpoint.interval import PRIOR_FAILURES_PER_GPU_HOUR, IntervalRule, daly_s, interval_of, young_s

STALLS = st.floats(1e-3, 600.0)
MTBFS = st.floats(60.0, 1e9)


def cost(training_s: float, stall_s: float, mtbf_s: float) -> float:
    """Daly's own model, restarts aside: time spent a second of training kept, failures coming by chance alone."""
    return mtbf_s * math.expm1((training_s + stall_s) / mtbf_s) / training_s


@given(STALLS, MTBFS)
def test_no_other_interval_costs_noticeably_less(stall_s: float, mtbf_s: float) -> None:
    if stall_s >= mtbf_s / 2:
        return  # then most time is lost whatever the interval is
    best = min(cost(daly_s(stall_s, mtbf_s) * 1.02**power, stall_s, mtbf_s) for power in range(-100, 101))
    assert cost(daly_s(stall_s, mtbf_s), stall_s, mtbf_s) <= best * 1.005


@given(STALLS, MTBFS)
def test_where_the_stall_is_small_it_is_youngs(stall_s: float, mtbf_s: float) -> None:
    if stall_s < mtbf_s * 1e-6:
        assert daly_s(stall_s, mtbf_s) == pytest.approx(young_s(stall_s, mtbf_s), rel=1e-3)
    assert daly_s(stall_s, mtbf_s) <= young_s(stall_s, mtbf_s) * 1.0001, (
        "time to train: what a stall takes is not in it"
    )


@given(STALLS, MTBFS, st.floats(1.01, 10.0))
def test_it_grows_with_the_stall_and_with_the_time_between_failures(stall_s: float, mtbf_s: float, by: float) -> None:
    if stall_s * by >= mtbf_s / 4:
        return
    rule = IntervalRule(min_s=1e-9, max_s=1e12)
    begin_to_begin = interval_of(stall_s, 1e-9, mtbf_s, rule).seconds
    assert interval_of(stall_s * by, 1e-9, mtbf_s, rule).seconds > begin_to_begin
    assert interval_of(stall_s, 1e-9, mtbf_s * by, rule).seconds > begin_to_begin


@given(STALLS, st.floats(1e-3, 20_000.0), MTBFS, st.floats(0.1, 1000.0), st.floats(1.0, 100.0))
def test_it_keeps_its_bounds_and_states_which(
    stall_s: float, save_s: float, mtbf_s: float, min_s: float, width: float
) -> None:
    rule = IntervalRule(min_s=min_s, max_s=min_s * width)
    found = interval_of(stall_s, save_s, mtbf_s, rule)
    assert found.seconds >= save_s, "the next would have to wait for it"
    assert found.seconds >= min_s
    if found.bound != "save":
        assert found.seconds <= rule.max_s
    exact = {"min": rule.min_s, "max": rule.max_s, "save": save_s, "none": daly_s(stall_s, mtbf_s) + stall_s}
    assert found.seconds == exact[found.bound]


def test_llama_3s_figures() -> None:
    """419 failures in 54 days of 16,384 GPUs: every 3.09 h one; a stall of 1 s gives 2.5 min, of 60 s 19."""
    mtbf_s = IntervalRule(failures_per_gpu_hour=419 / (54 * 24 * 16_384)).mtbf_s(16_384)
    assert mtbf_s / 3600 == pytest.approx(3.09, abs=0.01)
    assert young_s(1, mtbf_s) / 60 == pytest.approx(2.5, abs=0.05)
    assert young_s(60, mtbf_s) / 60 == pytest.approx(19, abs=0.5)
    assert pytest.approx(3.09, abs=0.1) == IntervalRule().mtbf_s(16_384) / 3600, "the prior is about theirs"
    assert IntervalRule(num_gpus=8).mtbf_s(2) == pytest.approx(3600 / PRIOR_FAILURES_PER_GPU_HOUR / 8)


def test_a_gang_that_cannot_live_as_long_as_a_stall_is_saved_once_a_life() -> None:
    assert daly_s(100.0, 50.0) == 50.0
