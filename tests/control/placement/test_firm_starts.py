"""A firm start is a row: each cycle keeps it, readers see it, and what postpones it is reported."""

import pytest

from api.job_views import job_plan_view, job_view
from control.attempts.mapping import submitted_job
from control.attempts.types import SubmittedJob
from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs.job_plans import EXPLAIN, explain_job
from control.placement import queue_head
from control.placement.queue_head import queue_head as head_of
from control.placement.wait_records import firm_start_of
from muster.db.models import Job
from muster.domain.ids import JobId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import JobState
from muster.wire.host import HOST_CAPABILITIES
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage

BOTH = {"nodes": 2, "gpus_per_node": 2}
ONE = {"nodes": 1, "gpus_per_node": 2}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Two hosts of two GPUs each, the first of them in use for half an hour."""
    made = make_stage(units, clock, num_hosts=2)
    made.run("on_demand", shape=ONE, wall_time_s=1800.0)
    return made


def job_of(stage: Stage, job_id: JobId) -> SubmittedJob:
    with stage.units.read() as session:
        return submitted_job(session, session.get_one(Job, job_id))


def firm_gang(stage: Stage) -> JobId:
    job_id = stage.submit("on_demand", shape=BOTH, wall_time_s=36_000.0)
    stage.cycle()
    assert job_view(job_of(stage, job_id))["firm_start_at"] is not None
    return job_id


def test_later_jobs_do_not_delay_it_and_each_reader_sees_the_same_time(stage: Stage) -> None:
    gang = firm_gang(stage)
    first = job_view(job_of(stage, gang))
    later = stage.submit("on_demand", shape=ONE, wall_time_s=7200.0)
    for _ in range(2):
        stage.cycle()
        assert job_of(stage, later).state is JobState.QUEUED, "it is more urgent, and would end too late"
        assert job_view(job_of(stage, gang))["firm_start_at"] == first["firm_start_at"]
    with stage.units.begin(stage.fleet.tenant, EXPLAIN, dry_run=True, quiet=True) as unit:
        found = job_plan_view(explain_job(unit, gang), stage.fleet.tenant)
    assert found["firm_start_at"] == found["latest_at"] == first["firm_start_at"]
    assert found["why"] == job_view(job_of(stage, gang))["state_reason"]
    assert "its start is firm" in (found["why"] or "")


def test_a_job_that_ends_before_runs_there(stage: Stage) -> None:
    gang = firm_gang(stage)
    short = stage.submit("on_demand", shape=ONE, wall_time_s=600.0)
    stage.cycle()
    assert job_of(stage, short).state is JobState.ACTIVE
    assert firm_start_of(job_of(stage, gang).wait_verdict) is not None


def test_a_policy_without_firm_starts_postpones_it_with_a_reason(stage: Stage) -> None:
    gang = firm_gang(stage)
    queue = DEFAULT_POLICY.queue.model_copy(update={"backfill": "conservative"})
    stage.set_policy(DEFAULT_POLICY.model_copy(update={"queue": queue}))
    stage.cycle()
    view = job_view(job_of(stage, gang))
    assert view["firm_start_at"] is None
    assert "was postponed: the policy makes no start firm any more" in view["state_reason"]


def test_a_policy_that_turns_the_preflight_on_does_not_take_the_place_away(stage: Stage) -> None:
    gang = firm_gang(stage)
    first = job_view(job_of(stage, gang))["firm_start_at"]
    for host in stage.hosts:
        own = [item for parts in stage.running.values() for where, item in parts if where is host]
        host.beat(*own, capabilities=HOST_CAPABILITIES)
    dispatch = DEFAULT_POLICY.dispatch.model_copy(update={"preflight_from_nodes": 2})
    stage.set_policy(DEFAULT_POLICY.model_copy(update={"dispatch": dispatch}))
    stage.cycle()
    later = stage.submit("on_demand", shape=ONE, wall_time_s=7200.0)
    stage.cycle()
    assert job_of(stage, later).state is JobState.QUEUED
    assert job_view(job_of(stage, gang))["firm_start_at"] == first


def test_a_long_queue_never_leaves_it_out(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    gang = firm_gang(stage)
    for wall_time_s in (7200.0, 72_000.0):
        stage.submit("reserved", shape=BOTH, wall_time_s=wall_time_s)
    monkeypatch.setattr(queue_head, "MAX_QUEUE", 1)
    with stage.units.read() as session:
        assert [job.id for job in head_of(session, DEFAULT_POLICY).jobs] == [gang]
