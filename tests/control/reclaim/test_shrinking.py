"""An elastic victim gives hosts and continues with the others: one notice, and no job takes the kept GPUs."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from muster.domain.ids import JobId
from muster.domain.policy.document import Policy
from muster.domain.policy.tiers import ReclaimPolicy
from muster.domain.states import Cause, JobState, ReclaimState
from muster.failpoints import FailpointError, arming
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import AFTER_MIN_RUN_S, DONE, LEFT, Stage, make_stage

GANG = {"nodes": 3, "gpus_per_node": 2, "min_nodes": 1, "max_nodes": 3}
ONE_HOST = {"nodes": 1, "gpus_per_node": 2}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    stage = make_stage(units, clock, num_hosts=3)
    stage.set_policy(Policy(reclaim=ReclaimPolicy(cap_fraction=0.5)))
    return stage


def elastic_victim(stage: Stage) -> JobId:
    """On all three hosts, past its minimum run."""
    job_id = stage.run("spot", shape=GANG)
    assert len(stage.running[job_id]) == 3
    stage.pass_time(AFTER_MIN_RUN_S)
    return job_id


def test_it_gives_one_host_and_goes_on_with_the_others(stage: Stage) -> None:
    victim = elastic_victim(stage)
    before = [host.node_id for host, _ in stage.running[victim]]
    beneficiary = stage.submit("reserved", shape=ONE_HOST)
    stage.cycle()
    reclaim = stage.reclaim()
    assert (reclaim.num_gpus, len(reclaim.keeps or ())) == (2, 4)
    stops = stage.beat_all()
    assert len(stops) == 3, "all of its hosts: it saves and continues as another attempt"
    assert stage.assigned_for(victim) == set(reclaim.keeps or ())
    thief = stage.submit("on_demand", shape=ONE_HOST)
    stage.leave(victim, LEFT)
    stage.reconcile()
    stage.cycle()
    stage.beat_all()
    assert [host.node_id for host, _ in stage.running[victim]] == before[:2]
    assert [host.node_id for host, _ in stage.running[beneficiary]] == before[2:]
    assert stage.job(thief).state is JobState.QUEUED, "neither the given nor the kept GPUs are another job's"
    settled = stage.refreshed(reclaim.id)
    assert settled.state is ReclaimState.RELEASED
    assert stage.fleet.attempts(victim)[0].attempt.cause is Cause.RECLAIMED
    assert stage.assigned_for(victim) == set()
    told = stage.events("reclaim.notified")[0].payload
    assert (told["num_gpus"], told["num_kept_gpus"]) == (2, 4)


def test_withdrawn_before_it_received_nothing_is_on_hold_and_it_goes_on(stage: Stage) -> None:
    victim = elastic_victim(stage)
    beneficiary = stage.submit("reserved", shape=ONE_HOST)
    stage.cycle()
    stage.cancel(beneficiary)
    stage.cycle()
    assert stage.reclaim().state is ReclaimState.WITHDRAWN
    assert stage.assigned_for(victim) == set()
    assert stage.beat_all() == []


def test_one_that_succeeds_meanwhile_leaves_nothing_kept(stage: Stage) -> None:
    victim = elastic_victim(stage)
    beneficiary = stage.submit("reserved", shape=ONE_HOST)
    stage.cycle()
    stage.beat_all()
    stage.leave(victim, DONE)
    stage.reconcile()
    stage.cycle()
    assert stage.job(victim).state is JobState.SUCCEEDED
    assert stage.reclaim().state is ReclaimState.OVERTAKEN
    assert stage.assigned_for(victim) == set()
    stage.beat_all()
    assert beneficiary in stage.running


def test_a_second_cycle_takes_no_more_of_it_and_the_cap_counts_what_it_gives(stage: Stage) -> None:
    elastic_victim(stage)
    stage.submit("reserved", shape=ONE_HOST)
    stage.submit("reserved", shape=ONE_HOST)
    stage.cycle()
    stage.cycle()
    assert len(stage.reclaims()) == 1
    assert sum(len(each.gpus) for each in stage.workload().running) == 6


@pytest.mark.parametrize("point", ["reclaim.notify.before_commit", "reclaim.notify.after_commit"])
def test_a_crash_around_the_notice_shrinks_it_once(stage: Stage, point: str) -> None:
    victim = elastic_victim(stage)
    beneficiary = stage.submit("reserved", shape=ONE_HOST)
    with arming(f"{point}=raise"), pytest.raises(FailpointError):
        stage.cycle()
    first = stage.reclaims()
    stage.clock.advance(5)
    stage.cycle()
    reclaim = stage.reclaim()
    assert reclaim.beneficiary_job_id == beneficiary
    assert [(each.id, each.deadline_at) for each in first] in ([], [(reclaim.id, reclaim.deadline_at)])
    stage.beat_all()
    stage.leave(victim, LEFT)
    stage.reconcile()
    stage.cycle()
    stage.beat_all()
    assert (len(stage.running[victim]), len(stage.running[beneficiary])) == (2, 1)
