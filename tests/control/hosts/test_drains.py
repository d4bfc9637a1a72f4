"""Draining a node: no new job comes, running jobs leave for maintenance, and none slips in between."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from control.core.unit_of_work import UnitOfWorkFactory, retrying
from control.fleet import cordons
from control.hosts import drains
from control.hosts import read as nodes
from control.policy.policies import active_policy
from muster.domain.errors import ConflictError, ForbiddenError, NotFoundError, ValidationFailedError
from muster.domain.ids import JobId
from muster.domain.principals import system_principal
from muster.domain.states import Cause, JobState, StopReason
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, enrol_host, make_fleet
from workers.control.scheduler_loop import run_cycle


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    made = make_fleet(units)
    made.beat()
    return made


def drain(fleet: Fleet, node: str = "alpha", **wanted: object) -> nodes.NodeDetail:
    def once() -> nodes.NodeDetail:
        with fleet.units.begin(OPERATOR, drains.DRAIN) as unit:
            node_id = drains.drain(unit, node, reason="new fans", **wanted)  # type: ignore[arg-type]  # as the test says
            return nodes.detail_of(unit, node_id)

    return retrying(once)


def read(fleet: Fleet) -> nodes.NodeDetail:
    with fleet.units.begin(OPERATOR, nodes.READ, dry_run=True) as unit:
        return nodes.detail_of(unit, "alpha")


def start(fleet: Fleet, name: str = "train") -> JobId:
    """On one GPU of alpha, claimed, so that it has to be stopped."""
    job = fleet.submit(name=name, shape={"nodes": 1, "gpus_per_node": 1})
    fleet.cycle()
    return job


def stop_of(fleet: Fleet, job: JobId) -> tuple[StopReason | None, Cause | None]:
    attempt = fleet.attempts(job)[-1].attempt
    return attempt.stop_reason, attempt.cause


def test_what_is_there_is_queried_to_leave_and_no_other_comes(fleet: Fleet) -> None:
    jobs = {start(fleet, "one"), start(fleet, "two")}
    found = drain(fleet)
    assert found.drain is not None
    assert (found.drain.reason_code, found.drain.reason) == (drains.REASON_CODE, "new fans")
    assert {stop_of(fleet, job)[0] for job in jobs} == {StopReason.MAINTENANCE}
    fleet.reconcile()
    fleet.cycle()
    assert {fleet.job(job).state for job in jobs} == {JobState.QUEUED}
    assert {stop_of(fleet, job)[1] for job in jobs} == {Cause.MAINTENANCE}
    assert all(fleet.job(job).restarts_used == 0 for job in jobs), "the infrastructure's stop costs the job nothing"
    assert read(fleet).jobs == []


def test_programs_have_the_time_that_the_policy_gives_or_more(fleet: Fleet, clock: SetClock) -> None:
    with fleet.units.read() as session:
        least_s = active_policy(session).evacuation.grace_s
    first = start(fleet)
    drain(fleet)
    assert fleet.attempts(first)[0].attempt.stop_deadline_at == clock.now + timedelta(seconds=least_s)
    with pytest.raises(ValidationFailedError, match=f"at least {least_s:g}"):
        drain(fleet, deadline_s=least_s - 1)
    with pytest.raises(ValidationFailedError, match="future"):
        drain(fleet, until=clock.now)


def test_more_time_is_given_where_it_is_requested(fleet: Fleet, clock: SetClock) -> None:
    job = start(fleet)
    drain(fleet, deadline_s=3600.0, until=clock.now + timedelta(hours=4))
    assert fleet.attempts(job)[0].attempt.stop_deadline_at == clock.now + timedelta(hours=1)


def test_releasing_its_cordon_ends_the_drain(fleet: Fleet) -> None:
    job = start(fleet)
    cordon = drain(fleet).drain
    assert cordon is not None
    with pytest.raises(ConflictError) as refused:
        drain(fleet)
    assert refused.value.extra["cordon_id"] == cordon.id
    with fleet.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordon.id)
    assert read(fleet).drain is None
    fleet.reconcile()
    fleet.cycle()
    assert fleet.job(job).state is JobState.ACTIVE, "back on the node"
    drain(fleet)


def test_other_nodes_are_left_alone_and_an_empty_one_is_done_at_once(fleet: Fleet) -> None:
    job = start(fleet)
    enrol_host(fleet.units, "beta")
    found = drain(fleet, "beta")
    assert (found.drain is not None, found.jobs) == (True, [])
    assert stop_of(fleet, job) == (None, None)


def test_only_an_operator_drains_and_only_what_is_there(fleet: Fleet) -> None:
    with pytest.raises(NotFoundError):
        drain(fleet, "gamma")
    with pytest.raises(ForbiddenError), fleet.units.begin(fleet.tenant, drains.DRAIN) as unit:
        drains.drain(unit, "alpha", reason="mine")


def test_a_placement_at_the_same_moment_is_seen_or_sees_the_cordon(fleet: Fleet) -> None:
    """Whichever commits first, no job is left on the node without having been asked to leave."""
    for round_ in range(4):
        jobs = [fleet.submit(name=f"job-{round_}-{n}", shape={"nodes": 1, "gpus_per_node": 1}) for n in range(2)]
        with ThreadPoolExecutor(2) as pool:
            placing = pool.submit(run_cycle, fleet.units, system_principal("scheduler"))
            draining = pool.submit(drain, fleet)
            placing.result()
            cordon = draining.result().drain
        for job in jobs:
            attempts = fleet.attempts(job)
            assert not attempts or attempts[-1].attempt.stop_reason is StopReason.MAINTENANCE
            fleet.cancel(job)
        assert cordon is not None
        with fleet.units.begin(OPERATOR, cordons.RELEASE) as unit:
            cordons.release(unit, cordon.id)
