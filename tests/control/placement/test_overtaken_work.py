"""The work that has overtaken a pending job is read from the attempts of later jobs."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.placement.scheduling import question
from muster.domain.ids import JobId
from muster.domain.policy.document import DEFAULT_POLICY
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import DONE, Stage, make_stage

BOUND_S = 3_600.0


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """A host of two GPUs, under a policy that lets an hour of the fleet's work pass."""
    stage = make_stage(units, clock)
    queue = DEFAULT_POLICY.queue.model_copy(update={"overtaken_work_bound_s": BOUND_S})
    stage.set_policy(DEFAULT_POLICY.model_copy(update={"queue": queue}))
    return stage


def passed_gpu_s(stage: Stage) -> dict[JobId, float]:
    with stage.units.read() as session:
        asked = question(session, stage.clock.now)
    assert asked is not None
    return {job.job_id: job.overtaken_gpu_s for job in asked.queue}


def test_work_counts_of_jobs_of_its_tier_that_came_in_a_later_hour(stage: Stage) -> None:
    gang = stage.submit("on_demand", shape={"nodes": 2})
    stage.pass_time(BOUND_S)
    later = stage.run("on_demand", shape={"gpus_per_node": 1})
    other_tier = stage.run("reserved", shape={"gpus_per_node": 1})
    stage.pass_time(600)
    assert passed_gpu_s(stage) == {gang: 600}, "a running attempt counts as far as it has run"
    stage.leave(later, DONE)
    stage.leave(other_tier, DONE)
    stage.pass_time(600)
    young = stage.submit("on_demand", shape={"nodes": 2})
    assert passed_gpu_s(stage) == {gang: 600, young: 0}, "what has ended counts as long as it ran"


def test_what_has_not_waited_for_the_bound_cannot_have_been_passed_and_is_not_requested_about(stage: Stage) -> None:
    gang = stage.submit("on_demand", shape={"nodes": 2})
    stage.pass_time(BOUND_S - 60)
    stage.run("on_demand", shape={"gpus_per_node": 2})
    stage.pass_time(40)
    assert passed_gpu_s(stage) == {gang: 0}


def test_what_was_passed_enough_goes_before_a_shorter_one_and_is_reported(stage: Stage) -> None:
    gang = stage.submit("on_demand", shape={"nodes": 2}, wall_time_s=864_000)
    stage.pass_time(BOUND_S)
    stage.run("on_demand", shape={"gpus_per_node": 2})
    stage.pass_time(BOUND_S)
    stage.cycle()
    assert "as much later work as the policy allows has overtaken it" in stage.job(gang).state_reason
