"""A window that is to be empty: no job is placed that would still run; running jobs leave in time, notified once."""

from datetime import timedelta

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import cordons, maintenance
from control.hosts.maintenance_evacuation import evacuate_for_maintenance_once
from muster.domain.errors import ValidationFailedError
from muster.domain.principals import system_principal
from muster.domain.states import Cause, JobState, StopReason
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.fleet_factory import OPERATOR

RECONCILER = system_principal("reconciler")
LEFT = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}, "stop_reason": "maintenance"}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    return make_stage(units, clock, num_hosts=2)


def declare(stage: Stage, *, in_s: float = 7200, lead_s: float | None = 600, node: str = "alpha") -> str:
    with stage.units.begin(OPERATOR, maintenance.DECLARE) as unit:
        starts_at = unit.now + timedelta(seconds=in_s)
        until = starts_at + timedelta(hours=1)
        return maintenance.declare(
            unit, node, reason="new optics", until=until, starts_at=starts_at, evacuate_lead_s=lead_s
        ).id


def clear(stage: Stage) -> list[str]:
    return [str(node) for node in evacuate_for_maintenance_once(stage.units, RECONCILER)]


def test_what_would_still_run_goes_elsewhere_and_what_is_gone_before_may_come(stage: Stage) -> None:
    declare(stage)
    alpha, beta = stage.hosts
    long = stage.run("on_demand", wall_time_s=7200.0)
    unsaid = stage.run("on_demand")
    assert stage.nodes_of(long) == stage.nodes_of(unsaid) == {beta.node_id}
    waits = stage.submit("on_demand")
    stage.cycle()
    assert stage.job(waits).state is JobState.QUEUED, "alpha is idle, and closes in two hours"
    short = stage.run("on_demand", wall_time_s=3600.0, shape={"gpus_per_node": 2})
    assert stage.nodes_of(short) == {alpha.node_id}
    assert stage.job(waits).state is JobState.QUEUED, "without a wall time it is expected to take a day"


def test_what_runs_there_is_reported_once_with_the_start_as_its_deadline(stage: Stage) -> None:
    job_id = stage.run("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    cordon_id = declare(stage)
    starts_at = stage.clock.now + timedelta(seconds=7200)
    assert clear(stage) == []
    stage.pass_time(6600)
    assert clear(stage) == [stage.hosts[0].node_id]
    (request,) = stage.stop_requests()
    assert (request.reason, request.deadline_at) == (StopReason.MAINTENANCE, starts_at)
    (told,) = stage.events("node.maintenance_evacuation")
    assert told.payload["jobs"] == [job_id]
    assert told.payload["cordon_id"] == cordon_id
    assert clear(stage) == [], "found again from the rows, and asked no more"
    assert len(stage.stop_requests()) == 1
    assert len(stage.beat_all()) == 2
    stage.leave(job_id, LEFT)
    assert stage.fleet.attempts(job_id)[-1].attempt.cause is Cause.MAINTENANCE


@pytest.mark.parametrize("lead_s", [None, 600.0])
def test_without_a_lead_or_where_its_wall_time_is_over_before_it_runs_on(stage: Stage, lead_s: float | None) -> None:
    job_id = stage.run("on_demand", wall_time_s=7000.0)
    for node in ("alpha", "beta"):
        declare(stage, lead_s=lead_s, node=node)
    stage.pass_time(6700)
    assert clear(stage) == []
    assert stage.stop_requests() == []
    assert stage.job(job_id).state is JobState.ACTIVE


def test_a_window_that_was_released_clears_nothing(stage: Stage) -> None:
    stage.run("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    cordon_id = declare(stage)
    with stage.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordon_id)
    stage.pass_time(6700)
    assert clear(stage) == []
    with stage.units.read() as session:
        assert maintenance.maintenance_starts(session, stage.clock.now) == {}


def test_when_the_work_on_a_node_is_over_is_known_but_where_another_cordon_has_no_end(stage: Stage) -> None:
    declare(stage)
    alpha = stage.hosts[0].node_id
    over_ms = to_ms(stage.clock.now + timedelta(hours=3))
    with stage.units.read() as session:
        assert maintenance.maintenance_ends(session, stage.clock.now) == {alpha: over_ms}
    with stage.units.begin(OPERATOR, cordons.CREATE) as unit:
        cordons.create(unit, reason="by hand", node_id=alpha)
    with stage.units.read() as session:
        assert maintenance.maintenance_ends(session, stage.clock.now) == {}


def test_declared_late_it_still_gives_what_the_policy_gives(stage: Stage) -> None:
    stage.run("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    declare(stage, in_s=5)
    assert clear(stage) == [stage.hosts[0].node_id]
    (request,) = stage.stop_requests()
    assert request.deadline_at == stage.clock.now + timedelta(seconds=120)


def test_less_time_than_the_policy_gives_is_refused_by_its_field(stage: Stage) -> None:
    with pytest.raises(ValidationFailedError) as refused:
        declare(stage, lead_s=30)
    (fault,) = refused.value.faults
    assert fault.pointer == "/evacuate_lead_s"
