"""The commit asks again: what has changed since the plan, a crash at any commit, a heartbeat during a withdrawal."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from control.fleet import cordons
from control.fleet.inventory import gpu_views
from control.jobs import jobs
from control.jobs.listing import JobFilter, list_jobs
from control.placement.holds import LAPSE, lapse
from control.placement.pending_jobs import waiting_jobs
from control.placement.placement import PLACE, PlacementLostError, place
from control.policy.policies import active_policy
from control.reclaim.notices import NOTIFY, ReclaimLostError, notify
from control.reclaim.victims import withdraw_idle
from control.tenants import quotas
from control.tenants.guarantees import guarantees_now
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.tiers import ReclaimPolicy, TierPolicy
from muster.domain.states import JobState, ReclaimState
from muster.failpoints import FailpointError, arming
from scheduler.model import Lapse, Plan, Reclaim, Shape
from scheduler.planner import plan
from scheduler.quota.tenancy import Quota
from tests.control.reclaim.stage import AFTER_MIN_RUN_S, LEFT, SCHEDULER, Stage
from tests.fleet_factory import OPERATOR
from tests.scaled import examples

BOTH = {"gpus_per_node": 2}
SPOT = DEFAULT_POLICY.tier("spot")


def planned(stage: Stage) -> Plan:
    with stage.units.read() as session:
        policy = active_policy(session)
        views = gpu_views(session, stage.clock.now, DEFAULT_POLICY.health)
        return plan(views, waiting_jobs(session), policy, stage.workload())


def commit(stage: Stage, chosen: Sequence[Reclaim]) -> None:
    with stage.units.begin(SCHEDULER, NOTIFY) as unit:
        notify(unit, chosen, active_policy(unit.session))


def with_spot(**changes: object) -> Policy:
    return Policy(tiers={**DEFAULT_POLICY.tiers, "spot": TierPolicy(**{**SPOT.model_dump(), **changes})})


def cancel_victim(stage: Stage) -> None:
    for job_id in stage.running:
        stage.fleet.cancel(job_id)


def cancel_beneficiary(stage: Stage) -> None:
    with stage.units.begin(stage.fleet.tenant, jobs.READ) as unit:
        (waiting,) = list_jobs(unit, JobFilter(states=[JobState.QUEUED]), limit=50)
    stage.fleet.cancel(waiting.job.id)


def cordon_host(stage: Stage) -> None:
    with stage.units.begin(OPERATOR, cordons.CREATE) as unit:
        cordons.create(unit, reason="noise", node_id=stage.hosts[0].node_id)


def lower_ceiling(stage: Stage) -> None:
    with stage.units.begin(OPERATOR, quotas.SET) as unit:
        quotas.set_quota(unit, stage.fleet.tenant_id, "reserved", Quota(ceiling=1), reason="contract")


CHANGES: list[tuple[Callable[[Stage], None], str]] = [
    (lambda stage: stage.set_policy(with_spot(notice_s=None)), "I7"),
    (lambda stage: stage.set_policy(with_spot(priority=300)), "I7"),
    (lambda stage: stage.set_policy(with_spot(notice_s=600.0)), "I8"),
    (lambda stage: stage.set_policy(with_spot(min_run_s=7200.0)), "I9"),
    (cancel_victim, "being stopped already"),
    (cancel_beneficiary, "is CANCELLED now"),
    (cordon_host, "cordoned"),
    (lower_ceiling, "holds 0 of the 1 GPUs"),
]


@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_what_changed_since_the_plan_gives_none_notice(stage: Stage, change: Callable[[Stage], None], why: str) -> None:
    stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    stage.submit("reserved", shape=BOTH)
    chosen = planned(stage).reclaims
    assert len(chosen) == 1
    change(stage)
    with pytest.raises(ReclaimLostError, match=why):
        commit(stage, chosen)
    assert stage.reclaims() == []
    assert stage.events("reclaim.notified") == []


def test_two_plans_of_one_moment_do_not_share_one_allowance(two_hosts: Stage) -> None:
    stage = two_hosts
    for _ in range(2):
        stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    stage.set_policy(Policy(reclaim=ReclaimPolicy(cap_fraction=1.0)))
    for _ in range(2):
        stage.submit("reserved", shape=BOTH)
    first, second = planned(stage).reclaims
    assert first.victim != second.victim
    stage.set_policy(Policy(reclaim=ReclaimPolicy(cap_fraction=0.5)))
    commit(stage, [first])
    with pytest.raises(ReclaimLostError, match="I9"):
        commit(stage, [second])
    with pytest.raises(ReclaimLostError, match="being reclaimed for"):
        commit(stage, [first])
    assert len(stage.reclaims()) == 1


def test_a_placement_that_was_planned_before_the_hold_is_lost(two_hosts: Stage) -> None:
    stage = two_hosts
    stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    small = stage.submit("on_demand")
    (placement,) = planned(stage).placements
    gang = stage.submit("reserved", shape={"nodes": 2, "gpus_per_node": 2})
    commit(stage, planned(stage).reclaims)
    assert len(stage.assigned_for(gang)) == 4
    with pytest.raises(PlacementLostError, match="is held for another"), stage.units.begin(SCHEDULER, PLACE) as unit:
        place(unit, placement, active_policy(unit.session), planned_under=guarantees_now(unit.session))
    assert stage.job(small).state is JobState.QUEUED


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_a_crash_around_a_notice_gives_it_once_with_one_deadline(stage: Stage, point: str) -> None:
    stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    with arming(f"reclaim.notify.{point}=raise"), pytest.raises(FailpointError):
        stage.cycle()
    before = stage.reclaims()
    assert len(before) == (point == "after_commit")
    stage.clock.advance(5)
    stage.cycle()
    reclaim = stage.reclaim()
    assert reclaim.beneficiary_job_id == reserved
    assert [one.deadline_at for one in before] in ([], [reclaim.deadline_at])
    assert len(stage.events("reclaim.notified")) == 1


@pytest.mark.parametrize("point", ["reclaim.lapse.before_commit", "reclaim.lapse.after_commit"])
def test_a_crash_while_it_is_withdrawn_leaves_that_to_the_next_cycle(stage: Stage, point: str) -> None:
    spot = stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    stage.fleet.cancel(reserved)
    with arming(f"{point}=raise"), pytest.raises(FailpointError):
        stage.cycle()
    assert stage.reclaim().state is ReclaimState.NOTIFIED
    stage.cycle()
    assert stage.reclaim().state is ReclaimState.WITHDRAWN
    assert stage.beat_all() == []
    assert stage.job(spot).state is JobState.ACTIVE


def test_what_is_on_hold_for_none_any_more_may_be_let_go_again(stage: Stage) -> None:
    """Two schedulers may both see that it is to end."""
    stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    for _ in range(2):
        with stage.units.begin(SCHEDULER, LAPSE) as unit:
            lapse(unit, Lapse(reserved, "it waits without a result"))
    assert stage.assigned_for(reserved) == set()
    assert len(stage.events("job.reclaim_lapsed")) == 1


def test_a_crash_after_the_placement_leaves_no_notice_behind(stage: Stage) -> None:
    spot = stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    stage.add_host("beta")
    with arming("placement.place.after_commit=raise"), pytest.raises(FailpointError):
        stage.cycle()
    assert stage.job(reserved).state is JobState.ACTIVE
    stage.cycle()
    assert stage.reclaim().state is ReclaimState.WITHDRAWN
    assert stage.job(spot).state is JobState.ACTIVE


def test_a_heartbeat_next_to_a_withdrawal_reports_or_lets_off_never_both(stage: Stage) -> None:
    """The host asks for its orders at the same time as the beneficiary's hold ends."""
    for _ in range(examples(6, 2)):
        spot = stage.run("spot", shape=BOTH)
        stage.pass_time(AFTER_MIN_RUN_S)
        reserved = stage.submit("reserved", shape=BOTH)
        stage.cycle()
        (reclaim,) = [one for one in stage.reclaims() if one.state is ReclaimState.NOTIFIED]
        stage.fleet.cancel(reserved)
        with ThreadPoolExecutor(2) as pool:
            heard, _ = pool.submit(stage.beat_all), pool.submit(stage.cycle)
        stops = heard.result()
        withdraw_idle(stage.units, SCHEDULER)
        settled = stage.refreshed(reclaim.id)
        assert (settled.state is ReclaimState.WITHDRAWN) == (stops == []) == (settled.delivered_at is None)
        stage.leave(spot, LEFT if stops else {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0}}})
        if stops:
            stage.fleet.cancel(spot)
        stage.pass_time(3700)


def test_a_victim_that_no_host_has_claimed_leaves_at_once(stage: Stage) -> None:
    stage.set_policy(with_spot(min_run_s=0.0))
    spot = stage.submit("spot", shape=BOTH)
    stage.cycle()
    reserved = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    assert stage.reclaim().state is ReclaimState.RELEASED
    stage.cycle()
    assert stage.job(reserved).state is JobState.ACTIVE
    stage.reconcile()
    assert stage.job(spot).state is JobState.QUEUED
    assert stage.job(spot).launch_failures == 0


def test_what_runs_states_what_its_job_requested(two_hosts: Stage) -> None:
    two_hosts.run("spot", shape={"nodes": 2, "gpus_per_node": 1})
    two_hosts.add_host("gamma", rack="r1")
    two_hosts.reconcile()
    two_hosts.run("spot", topology={"required": "rack"})
    asked = {one.requested for one in two_hosts.workload().running}
    assert asked == {Shape(2, 1), Shape(1, 1, "rack")}


def test_of_two_victims_the_one_that_was_reported_leaves_and_the_other_goes_on(two_hosts: Stage) -> None:
    stage = two_hosts
    stage.set_policy(Policy(reclaim=ReclaimPolicy(cap_fraction=1.0)))
    spots = {stage.run("spot", shape=BOTH) for _ in range(2)}
    stage.pass_time(AFTER_MIN_RUN_S)
    gang = stage.submit("reserved", shape={"nodes": 2, "gpus_per_node": 2})
    stage.cycle()
    assert {one.victim_job_id for one in stage.reclaims()} == spots
    told = next(job_id for job_id in spots if stage.nodes_of(job_id) == {stage.hosts[0].node_id})
    ((host, item),) = stage.running[told]
    assert [stop.reason for stop in host.beat(item).stops] == ["reclaim"]
    stage.fleet.cancel(gang)
    stage.cycle()
    states = {one.victim_job_id: one.state for one in stage.reclaims()}
    assert states == {told: ReclaimState.NOTIFIED, (spots - {told}).pop(): ReclaimState.WITHDRAWN}
    assert [stop.attempt_id for stop in stage.beat_all()] == [item.attempt_id]
    stage.leave(told, LEFT)
    stage.reconcile()
    stage.cycle()
    assert [stage.job(job_id).state for job_id in spots] == [JobState.ACTIVE] * 2


def test_a_gang_on_two_hosts_is_stopped_on_both_and_leaves_what_is_not_needed_to_others(two_hosts: Stage) -> None:
    stage = two_hosts
    gang = stage.run("spot", shape={"nodes": 2, "gpus_per_node": 2})
    stage.pass_time(AFTER_MIN_RUN_S)
    wanted = stage.submit("reserved", shape=BOTH)
    stage.cycle()
    reclaim = stage.reclaim()
    assert (reclaim.num_gpus, len(stage.assigned_for(wanted))) == (4, 2), (
        "its tenant loses the whole attempt, and is notified"
    )
    stage.beat_all()
    assert [stop.kill_after_s for stop in stage.beat_all()] == [120.0, 120.0]
    first, second = stage.running.pop(gang)
    first[0].report(first[1].attempt_id, first[1].fence, "exited", "cleaned", record=LEFT)
    assert stage.reclaim().state is ReclaimState.NOTIFIED, "it has left when all of it has"
    second[0].report(second[1].attempt_id, second[1].fence, "exited", "cleaned", record=LEFT)
    small = stage.submit("spot", shape=BOTH)
    stage.cycle()
    assert [stage.job(job_id).state for job_id in (wanted, small)] == [JobState.ACTIVE] * 2


POINTS = [
    f"{action}.{edge}"
    for action in ("reclaim.notify", "host.heartbeat", "host.report", "placement.place")
    for edge in ("before_commit", "after_commit")
]


def through_a_crash(step: Callable[[], object]) -> bool:
    """What asks again after its peer has died; whether it died."""
    try:
        step()
    except FailpointError:
        step()
        return True
    return False


@pytest.mark.parametrize("point", POINTS)
def test_whatever_commit_it_dies_at_the_contract_is_carried_out_once(stage: Stage, point: str) -> None:
    """From the notice to the placement: one beneficiary, one notice, one deadline, one order to stop."""
    spot = stage.run("spot", shape=BOTH)
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", shape=BOTH)
    ((host, item),) = stage.running[spot]
    deadline_at = stage.clock.now + timedelta(seconds=120)
    with arming(f"{point}=raise@1"):
        died = through_a_crash(stage.cycle)
        died |= through_a_crash(stage.beat_all)
        died |= through_a_crash(lambda: host.report(item.attempt_id, item.fence, "exited", "cleaned", record=LEFT))
        del stage.running[spot]
        stage.reconcile()
        died |= through_a_crash(stage.cycle)
    assert died, "a fault that never fires is no test"
    stage.beat_all()
    stage.cycle()
    assert reserved in stage.running
    assert stage.job(spot).state is JobState.QUEUED
    (reclaim,) = stage.reclaims()
    assert (reclaim.beneficiary_job_id, reclaim.deadline_at) == (reserved, deadline_at)
    assert reclaim.state is ReclaimState.RELEASED
    assert len(stage.stop_requests()) == 1
    assert len(stage.events("reclaim.notified")) == len(stage.events("reclaim.released")) == 1
    assert stage.assigned_for(reserved) == set()
