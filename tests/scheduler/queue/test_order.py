"""The order of the queue: short before long, each earlier the longer it waits, and no job is overtaken without end."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.ids import JobId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.model import WaitingJob, Workload
from scheduler.planner import plan
from scheduler.queue.order import LEAST_RUN_S, expected_run_s, in_order, passed_work_bound_gpu_s
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, job, of_host, racks, running

NUM_GPUS = 16
BOUND_GPU_S = passed_work_bound_gpu_s(DEFAULT_POLICY, NUM_GPUS)


def waiting(
    name: str, *, ago: float, wall: float = 60, passed_gpu_s: float = 0.0, tier: str = "on_demand"
) -> WaitingJob:
    """Queued ``ago`` minutes ago, with a wall time of ``wall`` minutes."""
    came = job(name, gpus=8, at=NOW_MS - int(ago * MINUTE_MS), tier=tier)
    return replace(came, expected_s=wall * 60, overtaken_gpu_s=passed_gpu_s)


def ordered(*queue: WaitingJob) -> list[str]:
    return [one.job_id for one in in_order(queue, DEFAULT_POLICY, NOW_MS, NUM_GPUS)]


def test_a_short_job_goes_before_a_long_one_that_has_not_waited_much_longer() -> None:
    long, short = waiting("long", ago=600, wall=6_000), waiting("short", ago=1, wall=10)
    assert ordered(long, short) == ["short", "long"]
    assert ordered(replace(long, queued_ms=-1_000_000 * MINUTE_MS), short) == ["long", "short"]


def test_what_requests_more_of_each_host_goes_before_as_long_a_job_but_not_before_a_far_shorter_one() -> None:
    whole = waiting("whole", ago=10)
    single = replace(waiting("single", ago=10), gpus_per_node=1)
    assert ordered(single, whole) == ["whole", "single"]
    assert ordered(replace(single, expected_s=600.0), whole) == ["single", "whole"]
    assert ordered(replace(single, queued_ms=single.queued_ms - 600 * MINUTE_MS), whole) == ["single", "whole"]
    wide = replace(whole, job_id=JobId("wide"), nodes=2)
    assert ordered(wide, whole) == ["whole", "wide"], "the number of hosts says nothing: then ids decide"
    queue = DEFAULT_POLICY.queue.model_copy(update={"host_share_exponent": 0.0})
    alike = DEFAULT_POLICY.model_copy(update={"queue": queue})
    assert [one.job_id for one in in_order([single, whole], alike, NOW_MS, NUM_GPUS)] == ["single", "whole"]


def test_what_was_passed_by_as_much_work_as_is_allowed_goes_first_the_oldest_of_them_before() -> None:
    short = waiting("short", ago=1, wall=10)
    second = waiting("second", ago=600, wall=6_000, passed_gpu_s=BOUND_GPU_S)
    first = waiting("first", ago=700, wall=60_000, passed_gpu_s=BOUND_GPU_S + 1)
    assert ordered(short, second, first) == ["first", "second", "short"]
    spared = replace(second, overtaken_gpu_s=BOUND_GPU_S - 1)
    assert ordered(short, spared, first) == ["first", "short", "second"]


def test_a_higher_tier_goes_before_whoever_was_passed() -> None:
    passed = waiting("passed", ago=600, passed_gpu_s=2 * BOUND_GPU_S)
    assert ordered(passed, waiting("reserved", ago=1, tier="reserved")) == ["reserved", "passed"]


def test_of_a_fleet_without_gpus_none_is_limited_to_be_passed() -> None:
    queue = [waiting("long", ago=600, wall=6_000), waiting("short", ago=1, wall=10)]
    assert [one.job_id for one in in_order(queue, DEFAULT_POLICY, NOW_MS, 0)] == ["short", "long"]


@pytest.mark.parametrize(("passed_gpu_s", "goes_first"), [(BOUND_GPU_S, True), (BOUND_GPU_S - 1, False)])
def test_what_was_passed_enough_is_reported_and_has_the_place_kept(passed_gpu_s: float, goes_first: bool) -> None:  # noqa: FBT001  # a column of the table
    gang = replace(waiting("gang", ago=600, wall=6_000, passed_gpu_s=passed_gpu_s), nodes=2)
    other = replace(waiting("other", ago=1, wall=50), nodes=2)
    busy = running("a0", of_host("r0h0"), tier="on_demand", ends_minutes=60)
    decided = plan(racks({"r0": [0, 8]}), [gang, other], DEFAULT_POLICY, Workload(NOW_MS, (busy,)))
    assert [held.job_id for held in decided.holds] == ["gang" if goes_first else "other"]
    why = next(item.why for item in decided.waiting if item.job_id == "gang")
    assert ("as much later work as the policy allows has overtaken it" in why) is goes_first


@pytest.mark.parametrize(
    ("run_s", "ran_s", "expected_s"),
    [
        (1_000, 0, 1_000),
        (1_000, 1_000, 1_000),
        (1_000, 1_001, 1_500),
        (1_000, 1_501, 2_250),
        (0, 50, 60),
        (60, 61, 120),
    ],
)
def test_a_job_that_outlasts_its_belief_has_it_raised_by_half_or_a_minute(
    run_s: float, ran_s: float, expected_s: float
) -> None:
    assert expected_run_s(run_s, ran_s, DEFAULT_POLICY) == expected_s


@given(st.floats(0, 1e7), st.floats(0, 1e7), st.floats(0.01, 10))
def test_no_belief_is_over_and_none_goes_far_beyond_what_was_run(run_s: float, ran_s: float, fraction: float) -> None:
    queue = DEFAULT_POLICY.queue.model_copy(update={"overrun_fraction": fraction})
    believed_s = expected_run_s(run_s, ran_s, DEFAULT_POLICY.model_copy(update={"queue": queue}))
    assert max(run_s, ran_s) <= believed_s <= max(run_s, ran_s * (1 + fraction), ran_s + LEAST_RUN_S)
