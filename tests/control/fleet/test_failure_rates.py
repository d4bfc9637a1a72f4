"""The fleet's record: attempts that its own faults ended, in the GPU-hours of all that ran."""

import json

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet.failure_rates import count_once
from control.policy.policies import ACTIVATE, store_policy
from muster.domain.ids import JobId
from muster.domain.job.failure_rate import Record
from muster.domain.policy.document import Policy
from muster.domain.policy.training import CheckpointIntervalPolicy, TrainingPolicy
from muster.domain.states import Cause
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.played_host import PlayedHost

HOUR_S = 3600
DONE = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}}
FAILED = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 3, "signal": None}}}
TIMED_OUT = {
    "launcher_exit_code": 1,
    "ranks": {"0": {"exit_code": 1, "signal": None, "error_excerpt": "Watchdog caught collective operation timeout"}},
}


class World:
    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.clock = clock
        self.fleet: Fleet = make_fleet(units)
        self.host = PlayedHost(units, self.fleet.node_id, boot_id="boot-of-alpha")

    def begin(self, **spec: object) -> tuple[JobId, str]:
        """Placed, claimed, started. The order's word about the interval."""
        job_id = self.fleet.submit(**spec)
        return job_id, self.go_on(job_id)

    def go_on(self, job_id: JobId) -> str:
        """Its next attempt."""
        self.fleet.reconcile()
        self.host.beat()
        self.fleet.cycle()
        newest = self.fleet.attempts(job_id)[-1].attempt
        claimed = self.host.claim(newest.id, newest.fence)
        assert claimed.order is not None
        self.host.report(newest.id, newest.fence, "started")
        return claimed.order.env["MUSTER_CHECKPOINT_INTERVAL"]

    def end(self, job_id: JobId, record: dict[str, object]) -> Cause | None:
        newest = self.fleet.attempts(job_id)[-1].attempt
        self.host.report(newest.id, newest.fence, "exited", "cleaned", record=record)
        return self.fleet.attempts(job_id)[-1].attempt.cause

    def lose(self, hours: float, **spec: object) -> None:
        """Its host boots again after so many hours."""
        job_id, _ = self.begin(**spec)
        self.clock.advance(hours * HOUR_S)
        self.host.boot_id = f"boot-after-{hours}"
        self.host.beat()
        self.fleet.reconcile()
        assert self.fleet.attempts(job_id)[-1].attempt.cause is Cause.NODE_LOST
        self.fleet.cancel(job_id)

    def run(self, hours: float, record: dict[str, object], **spec: object) -> Cause | None:
        job_id, _ = self.begin(**spec)
        self.clock.advance(hours * HOUR_S)
        cause = self.end(job_id, record)
        if self.fleet.job(job_id).finished_at is None:
            self.fleet.cancel(job_id)
        return cause


def counted(units: UnitOfWorkFactory) -> tuple[int, float]:
    record = count_once(units)
    return record.num_failures, round(record.gpu_hours, 6)


@pytest.fixture
def world(units: UnitOfWorkFactory, clock: SetClock) -> World:
    return World(units, clock)


def test_an_empty_fleet_has_no_record(units: UnitOfWorkFactory, world: World) -> None:
    assert count_once(units) == Record(0, 0.0)


def test_a_gpu_that_only_a_program_blames_makes_no_other_job_save_more_often(
    units: UnitOfWorkFactory, world: World
) -> None:
    blames = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 16, "signal": None}}}
    assert world.run(2, blames) is Cause.GPU_FAULT
    assert counted(units) == (0, 2.0)


def test_what_the_infrastructure_ended_counts_in_the_gpu_hours_of_all(
    units: UnitOfWorkFactory, clock: SetClock, world: World
) -> None:
    world.lose(3, shape={"gpus_per_node": 2})
    job_id, _ = world.begin(shape={"gpus_per_node": 2})
    clock.advance(2 * HOUR_S)
    assert counted(units) == (1, 10.0), "also of the running attempt"
    assert world.end(job_id, DONE) is Cause.SUCCEEDED
    assert world.run(0.5, FAILED) is Cause.USER_ERROR
    assert world.run(0.5, TIMED_OUT) is Cause.NCCL_TIMEOUT
    assert counted(units) == (1, 11.0), "a program's own fault is no failure of a GPU, and what may be one is none"
    clock.advance(27 * 24 * HOUR_S + 20 * HOUR_S)
    assert counted(units) == (1, 2 * 1 + 4 + 1), "as much of it as the window contains"
    clock.advance(24 * HOUR_S)
    assert count_once(units) == Record(0, 0.0)


def test_a_job_that_loses_work_again_and_again_is_reported_its_own_rate(clock: SetClock, world: World) -> None:
    job_id, first = world.begin(restart={"max_restarts": 5}, shape={"gpus_per_node": 2})
    told = [first]
    for _ in range(3):
        clock.advance(HOUR_S)
        assert world.end(job_id, FAILED) is Cause.USER_ERROR
        clock.advance(HOUR_S)
        told.append(world.go_on(job_id))
    rates = [json.loads(each)["failures_per_gpu_hour"] for each in told]
    expected = 1 / CheckpointIntervalPolicy().prior_gpu_hours_per_failure
    assert rates[:2] == [pytest.approx(expected)] * 2, "once is chance"
    assert rates[2:] == [pytest.approx(1 / 4), pytest.approx(2 / 6)], "in the GPU-hours that its attempts ran"
    assert world.end(job_id, DONE) is Cause.SUCCEEDED
    _, of_another = world.begin()
    assert json.loads(of_another)["failures_per_gpu_hour"] == pytest.approx(expected)


def test_an_attempt_is_reported_the_rate_for_its_gpus_within_the_policys_bounds(
    units: UnitOfWorkFactory, world: World
) -> None:
    rule = CheckpointIntervalPolicy(min_s=5.0, max_s=50.0, prior_failures=1.0, prior_gpu_hours_per_failure=9.0)
    with units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(training=TrainingPolicy(checkpoint_interval=rule)), reason="test")
    world.lose(11)
    count_once(units)
    _, told = world.begin(shape={"gpus_per_node": 2})
    assert json.loads(told) == {
        "failures_per_gpu_hour": pytest.approx(2 / 20),
        "num_gpus": 2,
        "min_s": 5.0,
        "max_s": 50.0,
    }
