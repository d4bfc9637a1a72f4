"""Notices of several schedulers on one quota: no more GPUs are held than the quota lets start (I6)."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import drains
from control.placement.scheduling import question
from control.policy.policies import active_policy
from control.reclaim.notices import NOTIFY, ReclaimLostError, notify
from control.tenants import quotas, tenants
from control.tenants.tenants import Place
from muster.domain.ids import JobId, TenantId
from muster.domain.principals import Principal
from scheduler.model import Reclaim
from scheduler.planner import plan
from scheduler.quota.tenancy import Quota
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import AFTER_MIN_RUN_S, LEFT, SCHEDULER, Stage, make_stage
from tests.filled_once import filled_world
from tests.fleet_factory import OPERATOR
from tests.lock_waits import is_a_lock_awaited
from tests.waiting import wait_until

HOST = {"gpus_per_node": 2}
STOPPED = {**LEFT, "stop_reason": "maintenance"}


@dataclass
class Department:
    """Two teams under one quota of a host; on each of two hosts a spot job of a tenant of its own runs."""

    stage: Stage
    id: TenantId
    one: Principal
    other: Principal

    def limit(self, num_gpus: int) -> None:
        with self.stage.units.begin(OPERATOR, quotas.SET) as unit:
            quotas.set_quota(unit, self.id, "reserved", Quota(ceiling=num_gpus), reason="test")

    def chosen_for(self, job_id: JobId) -> list[Reclaim]:
        """By a scheduler of its own, as things are now."""
        with self.stage.units.read() as session:
            asked = question(session, self.stage.clock.now)
        assert asked is not None
        decided = plan(asked.gpus, asked.queue, asked.policy, asked.workload)
        return [reclaim for reclaim in decided.reclaims if reclaim.beneficiary == job_id]

    def commit(self, chosen: list[Reclaim]) -> None:
        with self.stage.units.begin(SCHEDULER, NOTIFY) as unit:
            notify(unit, chosen, active_policy(unit.session))

    def two_plans(self) -> tuple[list[Reclaim], list[Reclaim]]:
        """One a team, each for all that the quota lets start, by schedulers that know nothing of each other."""
        first = self.stage.submit("reserved", by=self.one, shape=HOST)
        of_first = self.chosen_for(first)
        self.limit(4)
        second = self.stage.submit("reserved", by=self.other, shape=HOST)
        of_second = self.chosen_for(second)
        self.limit(2)
        assert [len(of_first), len(of_second)] == [1, 1]
        assert of_first[0].victim != of_second[0].victim
        return of_first, of_second


@pytest.fixture
def department(units: UnitOfWorkFactory, clock: SetClock) -> Department:
    return filled_world(units, clock, "department", lambda: _make_department(units, clock))


def _make_department(units: UnitOfWorkFactory, clock: SetClock) -> Department:
    stage = make_stage(units, clock, num_hosts=2)
    for name in ("first-owner", "second-owner"):
        stage.run("spot", by=stage.add_tenant(name), shape=HOST)
    stage.pass_time(AFTER_MIN_RUN_S)
    with stage.units.begin(OPERATOR, tenants.CREATE) as unit:
        above = tenants.create(unit, name="department").id
    one, other = stage.add_tenant("one"), stage.add_tenant("other")
    for team in (one, other):
        assert team.tenant_id is not None
        with stage.units.begin(OPERATOR, tenants.PLACE) as unit:
            tenants.place(unit, team.tenant_id, Place(parent_id=above), reason="test")
    found = Department(stage, above, one, other)
    found.limit(2)
    return found


def test_what_is_reclaimed_for_one_team_is_not_reclaimed_for_another_on_the_same_quota(department: Department) -> None:
    first, second = department.two_plans()
    department.commit(first)
    with pytest.raises(ReclaimLostError, match="2 are kept for pending jobs"):
        department.commit(second)
    assert [one.beneficiary_job_id for one in department.stage.reclaims()] == [first[0].beneficiary]
    assert department.stage.assigned_for(second[0].beneficiary) == set()


def test_of_two_schedulers_that_commit_at_once_the_later_waits_for_the_first_and_is_refused(
    department: Department,
) -> None:
    first, second = department.two_plans()
    with ThreadPoolExecutor(1) as pool:
        with department.stage.units.begin(SCHEDULER, NOTIFY) as unit:
            notify(unit, first, active_policy(unit.session))
            later = pool.submit(department.commit, second)
            _wait_until_locked_out(department, later)
        with pytest.raises(ReclaimLostError, match="kept for pending jobs"):
            later.result(timeout=10)
    assert len(department.stage.reclaims()) == 1


def _wait_until_locked_out(department: Department, later: "Future[None]") -> None:
    wait_until(lambda: later.done() or is_a_lock_awaited(department.stage.units), timeout_s=10)
    assert not later.done(), "the later commit never asked for the lock"


def test_whichever_of_two_threads_is_first_one_team_alone_is_guaranteed_anything(department: Department) -> None:
    both, start = department.two_plans(), threading.Barrier(2)

    def commit(chosen: list[Reclaim]) -> bool:
        start.wait(timeout=10)
        try:
            department.commit(chosen)
        except ReclaimLostError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(commit, both)) == [False, True]
    assert len(department.stage.reclaims()) == 1


def test_where_the_quota_lets_both_start_both_are_guaranteed(department: Department) -> None:
    first, second = department.two_plans()
    department.limit(4)
    department.commit(first)
    department.commit(second)
    assert len(department.stage.reclaims()) == 2


def test_one_after_another_the_planner_requests_no_more_than_its_commit_takes(department: Department) -> None:
    stage = department.stage
    first = stage.submit("reserved", by=department.one, shape=HOST)
    second = stage.submit("reserved", by=department.other, shape=HOST)
    assert len(stage.cycle().reclaims) == 1
    assert stage.cycle().reclaims == ()
    assert (len(stage.assigned_for(first)), len(stage.assigned_for(second))) == (2, 0)
    department.limit(4)
    assert [one.beneficiary for one in stage.cycle().reclaims] == [second]
    assert len(stage.reclaims()) == 2


def test_what_a_gang_will_go_on_with_is_kept_of_its_quota_from_its_end_on(department: Department) -> None:
    """Nothing is reclaimed on that, though the gang is in no queue while one of its hosts is being cleaned."""
    stage = department.stage
    for name in ("gamma", "delta"):
        stage.add_host(name)
    stage.reconcile()
    department.limit(4)
    gang = stage.run("reserved", by=department.one, shape={"nodes": 2, **HOST})
    (good, of_good), (bad, of_bad) = stage.running.pop(gang)
    with stage.units.begin(OPERATOR, drains.DRAIN) as unit:
        drains.drain(unit, bad.node_id, reason="a fan is loud")
    bad.beat(of_bad)
    good.report(of_good.attempt_id, of_good.fence, "exited", "cleaned", record=STOPPED)
    bad.report(of_bad.attempt_id, of_bad.fence, "exited", record=STOPPED)
    stage.reconcile()
    assert len(stage.assigned_for(gang)) == 4
    single = stage.submit("reserved", by=department.other, shape=HOST)
    assert department.chosen_for(single) == []
