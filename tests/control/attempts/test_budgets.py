"""A job's budget of GPU-hours: counted over all its attempts, and what has spent it ends."""

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from muster.db.models import Event, StopRequest
from muster.domain.ids import JobId
from muster.domain.job.spec import JobSpec
from muster.domain.states import Cause, JobState
from muster.wire.host import HostAttempt
from tests.control.conftest import SetClock
from tests.fleet_factory import make_fleet
from tests.played_host import PlayedHost

FAILED = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 3, "signal": None}}}


class World:
    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.clock = clock
        self.fleet = make_fleet(units)
        self.host = PlayedHost(units, self.fleet.node_id, boot_id="boot-of-alpha")

    def start(self, job_id: JobId) -> tuple[str, int]:
        self.host.beat()
        self.fleet.reconcile()
        self.fleet.cycle()
        newest = self.fleet.attempts(job_id)[-1].attempt
        assert self.host.claim(newest.id, newest.fence).granted
        self.host.report(newest.id, newest.fence, "started")
        return newest.id, newest.fence

    def runs(self, attempt: tuple[str, int], seconds: float) -> str | None:
        """Return the reason of the stop request that its host gets after so long."""
        self.clock.advance(seconds)
        held = HostAttempt(attempt_id=attempt[0], fence=attempt[1], phase="started")
        self.host.beat(held)
        self.fleet.reconcile()
        stops = self.host.beat(held).stops
        return stops[0].reason if stops else None


@pytest.fixture
def world(units: UnitOfWorkFactory, clock: SetClock) -> World:
    return World(units, clock)


def test_what_all_attempts_have_kept_counts_and_what_has_spent_it_is_stopped_and_failed(world: World) -> None:
    """Half an hour on two GPUs is one GPU-hour."""
    job_id = world.fleet.submit(shape={"gpus_per_node": 2}, budget_gpu_hours=1, restart={"max_restarts": 3})
    first = world.start(job_id)
    assert world.runs(first, 1_000) is None
    world.host.report(*first, "exited", "cleaned", record=FAILED)
    world.clock.advance(3_600)
    second = world.start(job_id)
    assert world.fleet.job(job_id).state is JobState.ACTIVE, "what passed between two attempts held nothing"
    assert world.runs(second, 799) is None
    assert world.runs(second, 1) == "budget"
    assert world.runs(second, 1) == "budget"
    with world.fleet.units.read() as session:
        (asked,) = session.scalars(select(StopRequest))
        (told,) = session.scalars(select(Event).where(Event.kind == "job.budget_spent"))
    assert (asked.reason, asked.detail) == ("budget", "1 of 1 GPU-hours are spent")
    assert (told.subject_id, told.payload["budget_gpu_hours"]) == (job_id, 1)
    world.host.report(*second, "exited", "cleaned", record={**FAILED, "stop_reason": "budget"})
    ended = world.fleet.attempts(job_id)[-1].attempt
    assert ended.cause is Cause.BUDGET
    assert world.fleet.job(job_id).state is JobState.FAILED


def test_a_job_without_one_runs_on(world: World) -> None:
    job_id = world.fleet.submit()
    assert world.runs(world.start(job_id), 1e7) is None


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf"), "much"])
def test_a_budget_is_a_number_of_hours(budget: object) -> None:
    with pytest.raises(ValidationError, match="budget_gpu_hours"):
        JobSpec.model_validate({"name": "j", "program": {"script": "/x.py"}, "budget_gpu_hours": budget}, strict=False)
