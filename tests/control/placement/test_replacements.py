"""A gang that loses hosts keeps the good ones: those alone are replaced within its rack, or the whole gang moves."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import drains
from control.placement.scheduling import question
from control.reclaim.notices import NOTIFY, ReclaimLostError, notify
from muster.domain.ids import JobId
from muster.domain.policy.document import Policy
from muster.domain.policy.tiers import ReclaimPolicy
from muster.domain.states import Cause
from scheduler.planner import plan
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import AFTER_MIN_RUN_S, DONE, SCHEDULER, Stage, make_stage
from tests.control.reclaim.stage import LEFT as RECLAIMED
from tests.filled_once import filled_world
from tests.fleet_factory import OPERATOR
from tests.played_host import PlayedHost

LEFT = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}, "stop_reason": "maintenance"}
SHAPE = {"nodes": 2, "gpus_per_node": 2}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Racks ``one`` and ``two`` of two hosts each, and a host whose rack is unknown."""
    return filled_world(units, clock, "two racks and a host", lambda: _make_stage(units, clock))


def _make_stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    stage = make_stage(units, clock)
    for rack in ("one", "two"):
        for name in ("a", "b"):
            stage.add_host(f"{rack}-{name}", rack=rack)
    return stage


def loses_a_host(stage: Stage) -> tuple[JobId, list[PlayedHost]]:
    """A gang of two hosts that requires one rack, of which the second one is drained and has left."""
    job_id = stage.run("on_demand", shape=SHAPE, topology={"required": "rack"})
    hosts = [host for host, _ in stage.running[job_id]]
    with stage.units.begin(OPERATOR, drains.DRAIN) as unit:
        drains.drain(unit, hosts[1].node_id, reason="a fan is loud")
    stage.beat_all()
    stage.clock.advance(1)
    stage.leave(job_id, LEFT)
    stage.reconcile()
    assert stage.fleet.attempts(job_id)[-1].attempt.cause is Cause.MAINTENANCE
    return job_id, hosts


def test_without_a_replacement_in_its_rack_it_waits_and_keeps_its_good_host(stage: Stage) -> None:
    job_id, hosts = loses_a_host(stage)
    stage.cycle()
    assert "1 of its 2 hosts are good and kept for it" in stage.job(job_id).state_reason
    other = stage.submit("on_demand", shape={"nodes": 1, "gpus_per_node": 2})
    stage.cycle()
    stage.beat_all()
    assert stage.running[other][0][0] is not hosts[0], "no other job of its tier takes the GPUs that it keeps"


def test_what_it_keeps_meanwhile_no_job_of_a_higher_tier_takes_either(stage: Stage) -> None:
    job_id, _ = loses_a_host(stage)
    stage.cycle()
    other = stage.submit("reserved", shape={"nodes": 4, "gpus_per_node": 2})
    for _ in range(2):
        stage.cycle()
        assert stage.fleet.attempts(other) == [], "four hosts are idle, of which one is kept"
        assert len(stage.assigned_for(job_id)) == 4
    stage.pass_time(121)
    stage.cycle()
    assert stage.assigned_for(job_id) == set()


def test_after_the_wait_the_whole_gang_moves_and_the_event_reports_it(stage: Stage) -> None:
    job_id, hosts = loses_a_host(stage)
    stage.cycle()
    stage.pass_time(121)
    stage.cycle()
    stage.beat_all()
    now_on = [host for host, _ in stage.running[job_id]]
    assert not set(map(id, now_on)) & set(map(id, hosts))
    told = stage.events("attempt.placed")[-1].payload["recovery"]
    assert told["kind"] == "placed_anew"
    assert told["reason"] == "its rack had no replacement in time: the whole gang is placed again"
    assert told["kept_nodes"] == 0


def test_a_replacement_in_its_rack_takes_the_lost_rank_alone(stage: Stage) -> None:
    job_id, hosts = loses_a_host(stage)
    stage.cycle()
    rack = stage.rack_of(hosts[0])
    spare = stage.add_host(f"{rack}-spare", rack=rack)
    stage.cycle()
    stage.beat_all()
    assert [host.node_id for host, _ in stage.running[job_id]] == [hosts[0].node_id, spare.node_id]
    told = stage.events("attempt.placed")[-1].payload["recovery"]
    assert told["kind"] == "hot_swap"
    assert told["replaced"] == [{"from": hosts[1].node_id, "to": spare.node_id}]
    assert (told["kept_nodes"], told["kept_gpus"]) == (1, 2)


def loses_a_host_where_spot_runs(stage: Stage) -> tuple[JobId, list[PlayedHost]]:
    """As ``loses_a_host``, with a third host in each rack, and spot jobs past their minimum run on all that is idle."""
    for rack in ("one", "two"):
        stage.add_host(f"{rack}-c", rack=rack)
    stage.reconcile()
    gang = stage.run("on_demand", shape=SHAPE, topology={"required": "rack"})
    hosts = [host for host, _ in stage.running[gang]]
    for _ in range(5):
        stage.run("spot", shape={"gpus_per_node": 2})
    stage.set_policy(Policy(reclaim=ReclaimPolicy(cap_fraction=1.0)))
    stage.pass_time(AFTER_MIN_RUN_S)
    with stage.units.begin(OPERATOR, drains.DRAIN) as unit:
        drains.drain(unit, hosts[1].node_id, reason="a fan is loud")
    stage.beat_all()
    stage.leave(gang, LEFT)
    stage.reconcile()
    return gang, hosts


def test_a_host_in_its_rack_is_reclaimed_at_once_for_the_lost_rank_alone(stage: Stage) -> None:
    gang, hosts = loses_a_host_where_spot_runs(stage)
    assert len(stage.assigned_for(gang)) == 4
    stage.cycle()
    victim = stage.reclaim().victim_job_id
    ((third, _),) = stage.running[victim]
    assert stage.rack_of(third) == stage.rack_of(hosts[0])
    assert "1 of its 2 hosts are good and kept for it, and others of that rack are being reclaimed" in (
        stage.job(gang).state_reason or ""
    )
    held = stage.assigned_for(gang)
    assert len(held) == 4, "its good host and the victim's, no longer the one that it lost"
    stage.cycle()
    assert stage.assigned_for(gang) == held
    assert len(stage.reclaims()) == 1
    stage.beat_all()
    stage.leave(victim, RECLAIMED)
    stage.cycle()
    stage.beat_all()
    assert [host.node_id for host, _ in stage.running[gang]] == [hosts[0].node_id, third.node_id]
    told = stage.events("attempt.placed")[-1].payload["recovery"]
    assert (told["kind"], told["replaced"]) == ("hot_swap", [{"from": hosts[1].node_id, "to": third.node_id}])


def test_while_its_victim_leaves_the_gang_does_not_move_to_a_rack_that_comes_free(stage: Stage) -> None:
    gang, hosts = loses_a_host_where_spot_runs(stage)
    stage.cycle()
    other_rack = [
        job_id
        for job_id, ((host, _), *_) in list(stage.running.items())
        if stage.rack_of(host) not in {stage.rack_of(hosts[0]), None}
    ]
    for job_id in other_rack:
        stage.leave(job_id, DONE)
    stage.cycle()
    assert len(stage.fleet.attempts(gang)) == 1
    assert len(stage.assigned_for(gang)) == 4


def test_of_two_commits_of_the_same_replacement_one_counts(stage: Stage) -> None:
    gang, _ = loses_a_host_where_spot_runs(stage)
    with stage.units.read() as session:
        asked = question(session, stage.clock.now)
    assert asked is not None
    chosen = plan(asked.gpus, asked.queue, asked.policy, asked.workload).reclaims
    assert {reclaim.beneficiary for reclaim in chosen} == {gang}
    with stage.units.begin(SCHEDULER, NOTIFY) as unit:
        notify(unit, chosen, asked.policy)
    with pytest.raises(ReclaimLostError, match="are being reclaimed for"), stage.units.begin(SCHEDULER, NOTIFY) as unit:
        notify(unit, chosen, asked.policy)
    assert len(stage.reclaims()) == 1


def test_a_first_attempt_states_nothing_of_recovery(stage: Stage) -> None:
    stage.run("on_demand", shape=SHAPE)
    (placed,) = stage.events("attempt.placed")
    assert "recovery" not in placed.payload
