"""The expected run time of a job without a wall time comes from earlier runs of its like, and the answer states it."""

import pytest
from sqlalchemy import select

from control.attempts import run_history
from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs.job_plans import PLAN, JobPlan, plan_job
from control.placement.scheduling import question
from muster.db.models import Job
from muster.domain.job.spec import JobSpec
from muster.domain.principals import Principal
from muster.domain.states import ExpectedFrom, JobState
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import DONE, Stage, make_stage
from tests.filled_once import filled_world

RUNS = 9


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """One host of two GPUs, on which nine jobs of one name have run, from 60 to 540 s."""
    return filled_world(units, clock, "nine nightly jobs", lambda: _run_nine(units, clock))


def _run_nine(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    stage = make_stage(units, clock)
    for number in range(RUNS):
        job_id = stage.run("on_demand", name="nightly")
        stage.pass_time(60 * (number + 1))
        stage.leave(job_id, DONE)
        stage.reconcile()
        assert stage.job(job_id).state is JobState.SUCCEEDED
    return stage


def expected(stage: Stage, *, by: Principal | None = None, **spec: object) -> float | None:
    job_id = stage.submit("on_demand", by=by, **spec)
    with stage.units.read() as session:
        asked = question(session, stage.clock.now)
    assert asked is not None
    (found,) = (job for job in asked.queue if job.job_id == job_id)
    return found.predicted_s


def planned(stage: Stage, **spec: object) -> JobPlan:
    document = {"name": "nightly", "program": {"script": "/srv/train.py"}, **spec}
    with stage.units.begin(stage.fleet.tenant, PLAN, dry_run=True, quiet=True) as unit:
        return plan_job(unit, JobSpec.model_validate(document, strict=False))


def test_a_job_is_expected_to_take_what_its_like_took(stage: Stage) -> None:
    assert expected(stage, name="nightly") == pytest.approx(540, abs=1)
    assert expected(stage, name="nightly", wall_time_s=60) is None, "the job states it itself"
    assert expected(stage, name="other") is None
    assert expected(stage, name="nightly", shape={"gpus_per_node": 2}) is None, "another shape"
    rival = stage.add_tenant("rival")
    assert expected(stage, name="nightly", by=rival) is None, "another tenant's past is its own"


def test_one_that_runs_is_expected_to_end_as_its_like_did(stage: Stage) -> None:
    began_ms = to_ms(stage.clock.now)
    for name in ("nightly", "other"):
        stage.run("on_demand", name=name, shape={"gpus_per_node": 1})
    stage.pass_time(60)
    stage.submit("on_demand", shape={"gpus_per_node": 2})
    with stage.units.read() as session:
        asked = question(session, stage.clock.now)
        names = {row.id: row.name for row in session.execute(select(Job.id, Job.name))}
    assert asked is not None
    ends_ms = {names[attempt.job_id]: attempt.predicted_ms for attempt in asked.workload.running}
    assert ends_ms == {"nightly": pytest.approx(began_ms + 540_000, abs=1_000), "other": None}


def test_it_is_searched_among_the_newest_of_its_name_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the name was run in other shapes since."""
    stage.leave(stage.run("on_demand", name="nightly", shape={"gpus_per_node": 2}), DONE)
    stage.reconcile()
    monkeypatch.setattr(run_history, "NEWEST_OF_NAME", RUNS + 1)
    assert expected(stage, name="nightly") == pytest.approx(540, abs=1)
    monkeypatch.setattr(run_history, "NEWEST_OF_NAME", RUNS)
    assert expected(stage, name="nightly") is None


def test_the_answer_states_what_it_is_expected_to_take_and_whence_that_is_known(stage: Stage) -> None:
    stage.run("on_demand", shape={"gpus_per_node": 2})
    found = planned(stage)
    assert found.expected_from is ExpectedFrom.HISTORY
    assert found.expected_run_s == pytest.approx(540, abs=1)
    said = planned(stage, wall_time_s=120, stop_grace_s=30)
    assert (said.expected_run_s, said.expected_from) == (150, ExpectedFrom.WALL_TIME)
    assert planned(stage, name="other").expected_from is ExpectedFrom.POLICY
