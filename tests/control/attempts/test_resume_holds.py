"""Release and next placement of a hot swap are one decision to all others: none takes the good GPUs in between."""

from dataclasses import dataclass

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import drains
from control.placement.placement import PLACE, PlacementLostError, place
from control.policy.policies import active_policy
from control.tenants.guarantees import guarantees_now
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.states import Cause, JobState
from muster.failpoints import FailpointError, arming
from muster.wire.host import HostAttempt
from scheduler.model import Placement
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import AFTER_MIN_RUN_S, SCHEDULER, Stage, make_stage
from tests.fleet_factory import OPERATOR
from tests.played_host import PlayedHost

PAIR = {"nodes": 2, "gpus_per_node": 2}
HOST = {"gpus_per_node": 2}
STOPPED = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}, "stop_reason": "maintenance"}
FAILED = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 1, "signal": None}}}
Part = tuple[PlayedHost, HostAttempt]


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Four hosts of two GPUs each."""
    return make_stage(units, clock, num_hosts=4)


@dataclass
class Gang:
    """It runs on two hosts and leaves, since its ``bad`` one is drained."""

    stage: Stage
    job_id: JobId
    good: Part
    bad: Part
    good_gpus: set[GpuUuid]

    def states(self, part: Part, *kinds: str) -> None:
        host, item = part
        host.report(item.attempt_id, item.fence, *kinds, record=STOPPED)

    def ends(self) -> None:
        """The good host is clean, the bad one's programs have ended: what they leave is not proved clean yet."""
        self.states(self.good, "exited", "cleaned")
        self.states(self.bad, "exited")
        self.stage.reconcile()

    def is_clean(self) -> None:
        self.states(self.bad, "cleaned")
        self.stage.reconcile()

    def nodes(self) -> list[NodeId]:
        return nodes_of(self.stage, self.job_id)


def nodes_of(stage: Stage, job_id: JobId) -> list[NodeId]:
    """Of its newest attempt, by rank; none of a job that was never placed."""
    attempts = stage.fleet.attempts(job_id)
    return [one.part.node_id for one in attempts[-1].hosts] if attempts else []


def leaving(stage: Stage) -> Gang:
    job_id = stage.run("spot", shape=PAIR)
    stage.clock.advance(1)
    good, bad = stage.running[job_id]
    with stage.units.begin(OPERATOR, drains.DRAIN) as unit:
        drains.drain(unit, bad[0].node_id, reason="a fan is loud")
    stage.beat_all()
    del stage.running[job_id]
    (attempt,) = stage.fleet.attempts(job_id)
    gpus = {gpu for one in attempt.hosts if one.part.node_id == good[0].node_id for gpu in one.gpus}
    return Gang(stage, job_id, good, bad, gpus)


def fill_the_rest(stage: Stage) -> None:
    """The two other hosts are taken, so that the next job has only the GPUs of the gang."""
    for _ in range(2):
        stage.run("reserved", shape=HOST)


def test_while_one_host_is_being_proved_clean_none_takes_the_others(stage: Stage) -> None:
    gang = leaving(stage)
    fill_the_rest(stage)
    gang.ends()
    assert stage.fleet.attempts(gang.job_id)[-1].attempt.cause is Cause.MAINTENANCE
    assert stage.assigned_for(gang.job_id) >= gang.good_gpus
    other = stage.submit("reserved", shape=HOST)
    stage.cycle()
    assert nodes_of(stage, other) == [], "of a tier that goes first, and the good host is clean and idle"
    assert stage.job(gang.job_id).state is JobState.QUEUED


def test_it_goes_on_with_them_though_a_job_of_a_higher_tier_came_first(stage: Stage) -> None:
    gang = leaving(stage)
    gang.ends()
    other = stage.submit("reserved", shape=HOST)
    stage.cycle()
    gang.is_clean()
    stage.cycle()
    assert gang.nodes()[0] == gang.good[0].node_id
    assert gang.bad[0].node_id not in gang.nodes()
    assert nodes_of(stage, other) not in ([], [gang.good[0].node_id])
    assert stage.assigned_for(gang.job_id) == set()
    assert stage.events("attempt.placed")[-1].payload["recovery"]["kept_nodes"] == 1


def test_a_plan_of_before_the_end_is_refused_them(stage: Stage) -> None:
    gang = leaving(stage)
    gang.ends()
    gang.is_clean()
    other = stage.submit("reserved", shape=HOST)
    parts = ((gang.good[0].node_id, tuple(sorted(gang.good_gpus))),)
    stale = Placement(other, stage.job(other).version, parts)
    with pytest.raises(PlacementLostError, match="is held for another"), stage.units.begin(SCHEDULER, PLACE) as unit:
        place(unit, stale, active_policy(unit.session), planned_under=guarantees_now(unit.session))


def test_what_cannot_go_on_with_them_lets_go_at_its_first_try(stage: Stage) -> None:
    gang = leaving(stage)
    fill_the_rest(stage)
    gang.ends()
    gang.is_clean()
    other = stage.submit("reserved", shape=HOST)
    stage.cycle()
    assert stage.assigned_for(gang.job_id) == set()
    (told,) = stage.events("job.hold_lapsed")
    assert told.payload["job_id"] == gang.job_id
    stage.cycle()
    assert nodes_of(stage, other) == [gang.good[0].node_id]


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_a_crash_at_the_end_leaves_the_old_holding_or_what_is_kept_of_it_and_never_neither(
    stage: Stage, point: str
) -> None:
    gang = leaving(stage)
    gang.states(gang.good, "exited", "cleaned")
    with arming(f"host.report.{point}=raise"), pytest.raises(FailpointError):
        gang.states(gang.bad, "exited")
    is_ended = stage.fleet.attempts(gang.job_id)[-1].attempt.ended_at is not None
    assert is_ended is (point == "after_commit")
    assert (stage.assigned_for(gang.job_id) >= gang.good_gpus) is is_ended
    others = [stage.submit("reserved", shape=HOST) for _ in range(3)]
    stage.cycle()
    taken = [nodes_of(stage, job_id) for job_id in others]
    assert sum(map(len, taken)) == 2, "the idle hosts alone"
    assert [gang.good[0].node_id] not in taken
    gang.states(gang.bad, "exited")  # the host reports again what the server did not confirm
    assert stage.assigned_for(gang.job_id) >= gang.good_gpus


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_a_crash_at_the_next_placement_leaves_what_is_kept_or_the_next_holding_and_never_neither(
    stage: Stage, point: str
) -> None:
    gang = leaving(stage)
    gang.ends()
    gang.is_clean()
    with arming(f"placement.place.{point}=raise"), pytest.raises(FailpointError):
        stage.cycle()
    is_placed = len(stage.fleet.attempts(gang.job_id)) == 2
    assert is_placed is (point == "after_commit")
    assert (stage.assigned_for(gang.job_id) >= gang.good_gpus) is not is_placed
    stage.cycle()
    assert len(stage.fleet.attempts(gang.job_id)) == 2, "once"
    assert gang.nodes()[0] == gang.good[0].node_id
    assert stage.assigned_for(gang.job_id) == set()


def test_what_is_guaranteed_to_a_beneficiary_stays_so_whatever_its_victim_ends_of(stage: Stage) -> None:
    victim = stage.run("spot", shape={"nodes": 4, "gpus_per_node": 2})
    stage.pass_time(AFTER_MIN_RUN_S)
    beneficiary = stage.submit("reserved", shape=PAIR)
    stage.cycle()
    promised = stage.assigned_for(beneficiary)
    assert len(promised) == 4
    with stage.units.begin(OPERATOR, drains.DRAIN) as unit:
        drains.drain(unit, stage.hosts[0].node_id, reason="a fan is loud")
    stage.beat_all()
    for host, item in stage.running.pop(victim):
        host.report(item.attempt_id, item.fence, "exited", "cleaned", record=STOPPED)
    assert stage.fleet.attempts(victim)[-1].attempt.cause is Cause.MAINTENANCE
    assert stage.assigned_for(beneficiary) == promised
    assert len(stage.assigned_for(victim)) == 4


def test_a_programs_own_end_keeps_nothing(stage: Stage) -> None:
    job_id = stage.run("spot", shape=PAIR, restart={"max_restarts": 3})
    stage.clock.advance(1)
    stage.leave(job_id, FAILED)
    assert stage.job(job_id).state is JobState.RECOVERING
    assert stage.assigned_for(job_id) == set()


def test_a_cancelled_job_keeps_nothing(stage: Stage) -> None:
    gang = leaving(stage)
    gang.ends()
    assert stage.assigned_for(gang.job_id)
    stage.cancel(gang.job_id)
    stage.cycle()
    assert stage.assigned_for(gang.job_id) == set()
