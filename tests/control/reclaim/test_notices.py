"""Reclaim from notice to return: which attempt is notified and when, which GPUs are kept for a job, and withdrawals."""

from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from control.core.unit_of_work import UnitOfWorkFactory
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.tiers import ReclaimPolicy, TierPolicy
from muster.domain.states import JobState, ReclaimOutcome, ReclaimState
from tests.control.reclaim.stage import AFTER_MIN_RUN_S, DONE, KILLED, LEFT, Stage

BOTH = {"gpus_per_node": 2}
FREE_CAP = ReclaimPolicy(cap_fraction=1.0)


def test_spot_gives_way_to_reserved_with_notice_and_comes_back(stage: Stage) -> None:
    spot = stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    reclaim = stage.reclaim()
    assert (reclaim.state, reclaim.beneficiary_job_id, reclaim.victim_job_id) == ("NOTIFIED", reserved, spot)
    assert reclaim.deadline_at == stage.clock.now + timedelta(seconds=120), "I8: commit time and the tier's notice"
    assert stage.assigned_for(reserved) == {"GPU-alpha-0", "GPU-alpha-1"}
    until = reclaim.deadline_at.strftime("%H:%M:%SZ")
    assert stage.job(reserved).state_reason.startswith(f"GPUs are being reclaimed for it, due by 2026-11-21T{until};")

    (stop,) = stage.beat_all()
    assert (stop.reason, stop.kill_after_s) == ("reclaim", 120.0)
    (request,) = stage.stop_requests()
    assert (request.reason, request.deadline_at, request.requested_by) == (
        "reclaim",
        reclaim.deadline_at,
        "system:scheduler",
    )
    assert "for a job of the tier reserved of 2 GPUs" in request.detail
    stage.pass_time(20)
    stage.saves(spot, 40)
    stage.leave(spot, LEFT)
    stage.reconcile()
    stage.cycle()
    stage.beat_all()
    assert stage.job(reserved).state is JobState.ACTIVE
    assert stage.assigned_for(reserved) == set()
    settled = stage.reclaim()
    assert (settled.state, settled.outcome, settled.lost_gpu_s) == ("RELEASED", "checkpointed", 0.0)
    back = stage.job(spot)
    assert (back.state, back.restarts_used, back.next_try_at) == (JobState.QUEUED, 0, None)

    stage.leave(reserved, DONE)
    stage.cycle()
    stage.beat_all()
    assert stage.job(spot).state is JobState.ACTIVE
    assert len(stage.reclaims()) == 1


@pytest.mark.parametrize("notice_s", [30.0, 600.0])
def test_the_notice_is_the_tiers_own(stage: Stage, notice_s: float) -> None:
    tiers = {**DEFAULT_POLICY.tiers, "spot": TierPolicy(priority=100, notice_s=notice_s, min_run_s=0)}
    stage.set_policy(Policy(tiers=tiers))
    stage.run("spot", shape=BOTH)
    stage.submit("on_demand", shape=BOTH)
    stage.cycle()
    reclaim = stage.reclaim()
    assert reclaim.deadline_at - reclaim.notified_at == timedelta(seconds=notice_s)
    (stop,) = stage.beat_all()
    assert stop.kill_after_s == notice_s


def test_a_second_cycle_gives_no_second_notice(stage: Stage) -> None:
    stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    for _ in range(3):
        stage.cycle()
        stage.beat_all()
    reclaim = stage.reclaim()
    assert (reclaim.state, reclaim.beneficiary_job_id) == (ReclaimState.NOTIFIED, reserved)
    assert len(stage.stop_requests()) == 1


def test_no_rule_takes_from_a_tier_without_notice(stage: Stage) -> None:
    stage.run("on_demand", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    stage.submit("reserved", shape=BOTH)
    assert stage.cycle().reclaims == ()
    assert stage.reclaims() == []


def test_a_young_attempt_is_spared_and_the_job_is_reported_until_when(stage: Stage) -> None:
    stage.run("spot", shape=BOTH)
    stage.pass_time(60)
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    assert stage.reclaims() == []
    assert "reclaim waits until 2026-11-21T04:30:00Z" in stage.job(reserved).state_reason


def test_cancelled_before_the_host_received_it_is_withdrawn_and_the_victim_goes_on(stage: Stage) -> None:
    spot = stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    stage.fleet.cancel(reserved)
    decided = stage.cycle()
    assert len(decided.withdrawals) == 1
    assert decided.reclaims == (), "an empty queue does not end the cycle early"
    reclaim = stage.reclaim()
    assert (reclaim.state, reclaim.settled_why) == ("WITHDRAWN", "the job that it was for is no longer pending")
    assert stage.beat_all() == []
    assert stage.stop_requests() == []
    assert stage.job(spot).state is JobState.ACTIVE
    assert stage.assigned_for(reserved) == set()
    assert [event.payload["to"] for event in stage.events("reclaim.withdrawn")] == ["WITHDRAWN"]


def test_cancelled_after_the_host_received_it_the_victim_leaves_and_nothing_is_on_hold(stage: Stage) -> None:
    spot = stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    assert len(stage.beat_all()) == 1
    stage.fleet.cancel(reserved)
    assert stage.cycle().withdrawals == (), "nor does the planner count on the victim to continue"
    assert stage.reclaim().state is ReclaimState.NOTIFIED, "a notice that a program has got is not taken back"
    assert stage.assigned_for(reserved) == set()
    stage.leave(spot, LEFT)
    assert stage.reclaim().state is ReclaimState.RELEASED
    stage.reconcile()
    stage.cycle()
    assert stage.job(spot).state is JobState.ACTIVE, "and takes its GPUs again, since no other job needs them"


def test_placed_elsewhere_before_the_host_received_it_is_withdrawn(stage: Stage) -> None:
    spot = stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    other = stage.add_host("beta")
    stage.cycle()
    stage.beat_all()
    assert stage.nodes_of(reserved) == {other.node_id}
    reclaim = stage.reclaim()
    assert (reclaim.state, reclaim.settled_why) == ("WITHDRAWN", "the job that it was for has been placed")
    assert stage.job(spot).state is JobState.ACTIVE


def test_a_victim_that_has_not_left_by_the_deadline_is_killed_then_and_its_loss_is_stated(stage: Stage) -> None:
    spot = stage.run("spot", shape=BOTH)
    stage.saves(spot, 10)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    stage.beat_all()
    stage.pass_time(119)
    (stop,) = stage.beat_all()
    assert stop.kill_after_s == 1.0, "the deadline is stored, and neither lengthens nor shortens"
    stage.pass_time(1)
    (stop,) = stage.beat_all()
    assert stop.kill_after_s == 0.0
    stage.leave(spot, KILLED)
    reclaim = stage.reclaim()
    assert (reclaim.state, reclaim.outcome) == (ReclaimState.FORCED, ReclaimOutcome.WORK_LOST)
    assert reclaim.lost_gpu_s == pytest.approx(2 * (AFTER_MIN_RUN_S + 120), abs=0.1)
    (event,) = stage.events("reclaim.forced")
    assert event.payload["resumes_from_step"] == 10
    assert event.payload["words"] == (
        "no checkpoint was saved within the notice of 120 s: it continues from the checkpoint of step 10"
    )
    stage.reconcile()
    stage.cycle()
    assert stage.job(reserved).state is JobState.ACTIVE


def test_words_that_arrive_after_the_end_correct_the_outcome(stage: Stage) -> None:
    spot = stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    stage.submit("reserved", shape=BOTH)
    stage.cycle()
    stage.beat_all()
    stage.pass_time(5)
    ((host, item),) = stage.leave(spot, LEFT)
    assert stage.reclaim().outcome is ReclaimOutcome.WORK_LOST
    stage.report_saved(host, item, 33)
    reclaim = stage.reclaim()
    assert (reclaim.state, reclaim.outcome, reclaim.lost_gpu_s) == ("RELEASED", "checkpointed", 0.0)
    (event,) = stage.events("reclaim.outcome_known")
    assert event.payload["resumes_from_step"] == 33


def test_a_victim_that_ends_by_itself_overtakes_its_reclaim_and_makes_room_all_the_same(stage: Stage) -> None:
    spot = stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    stage.leave(spot, DONE)
    reclaim = stage.reclaim()
    assert (reclaim.state, reclaim.outcome) == (ReclaimState.OVERTAKEN, None)
    assert stage.job(spot).state is JobState.SUCCEEDED
    stage.submit("spot", shape=BOTH)
    stage.cycle()
    assert stage.job(reserved).state is JobState.ACTIVE


def test_two_beneficiaries_at_once_have_a_victim_and_a_place_each(two_hosts: Stage) -> None:
    stage = two_hosts
    stage.set_policy(Policy(reclaim=FREE_CAP))
    spots = [stage.run("spot", shape=BOTH) for _ in range(2)]
    stage.pass_time(AFTER_MIN_RUN_S)
    wanted = [stage.submit("reserved", shape=BOTH), stage.submit("on_demand", shape=BOTH)]
    stage.cycle()
    reclaims = stage.reclaims()
    assert {reclaim.beneficiary_job_id for reclaim in reclaims} == set(wanted)
    assert {reclaim.victim_job_id for reclaim in reclaims} == set(spots)
    assert [len(stage.assigned_for(job_id)) for job_id in wanted] == [2, 2]
    assert not stage.assigned_for(wanted[0]) & stage.assigned_for(wanted[1])
    assert len(stage.beat_all()) == 2
    first = next(reclaim for reclaim in reclaims if reclaim.beneficiary_job_id == wanted[1])
    stage.leave(first.victim_job_id, LEFT)
    stage.cycle()
    assert stage.job(wanted[1]).state is JobState.ACTIVE
    assert stage.job(wanted[0]).state is JobState.QUEUED, "the other's place is its own"


def test_the_free_part_of_a_guaranteed_place_goes_to_no_other(two_hosts: Stage) -> None:
    stage = two_hosts
    stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    gang = stage.submit("reserved", shape={"nodes": 2, "gpus_per_node": 2})
    small = stage.submit("on_demand")
    stage.cycle()
    assert len(stage.assigned_for(gang)) == 4
    stage.cycle()
    assert stage.job(small).state is JobState.QUEUED


def test_a_tenant_loses_no_more_than_its_cap_in_a_window(two_hosts: Stage) -> None:
    stage = two_hosts
    spots = [stage.run("spot", shape=BOTH) for _ in range(2)]
    stage.pass_time(AFTER_MIN_RUN_S)
    first = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    stage.beat_all()
    victim = stage.reclaim().victim_job_id
    stage.leave(victim, LEFT)
    stage.cycle()
    stage.beat_all()
    assert stage.job(first).state is JobState.ACTIVE
    second = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    assert len(stage.reclaims()) == 1, "2 of 4 GPUs were reclaimed in this hour: half, and its smallest job"
    assert (
        "the cap on what a tenant may lose to reclaim in 60 minutes leaves too little for it"
        in stage.job(second).state_reason
    )
    stage.pass_time(3601)
    stage.cycle()
    assert {reclaim.victim_job_id for reclaim in stage.reclaims()} == set(spots)


def test_the_workload_counts_the_most_that_a_tenant_kept_at_one_time(two_hosts: Stage) -> None:
    stage = two_hosts
    first = stage.run("spot", shape=BOTH)
    stage.run("spot")
    stage.pass_time(600)
    stage.leave(first, DONE)
    stage.run("spot")
    tenant_id = stage.fleet.tenant_id
    assert dict(stage.workload().peak_gpus) == {tenant_id: 3}
    stage.pass_time(3601)
    assert dict(stage.workload().peak_gpus) == {tenant_id: 2}, "what ended before the window counts no more"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE reclaims SET deadline_at = deadline_at - interval '1 s'",
        "UPDATE reclaims SET notice_s = 1",
        "UPDATE reclaims SET state = 'RELEASED', settled_at = now()",
        "UPDATE reclaims SET told_at = now(), settled_at = now(), state = 'WITHDRAWN'",
    ],
)
def test_the_database_keeps_a_notice_as_it_was_given(stage: Stage, units: UnitOfWorkFactory, statement: str) -> None:
    stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    stage.submit("reserved", shape=BOTH)
    stage.cycle()
    with pytest.raises(IntegrityError), units.engine.begin() as connection:
        connection.execute(text(statement))
