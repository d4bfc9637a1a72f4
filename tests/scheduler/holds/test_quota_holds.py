"""Quota that is kept for pending jobs: GPUs held for one job count for its tenant and department."""

from collections.abc import Sequence
from dataclasses import replace

from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.explain.advice import Change, answer
from scheduler.fleet.topology import FleetState
from scheduler.model import Plan, Question, ResumeHold, RunningAttempt, StandingReclaim, Waiting, WaitingJob, Workload
from scheduler.planner import plan, plan_on
from scheduler.quota.tenancy import Member, Quota, Tenancy
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, job, of_host, queueing, racks, running, standing

TEAMS = {TenantId(team): Member(TenantId("department")) for team in ("one", "other")}


def at_most(num_gpus: int, tenant: str = "waiter", tier: str = "reserved") -> Tenancy:
    return Tenancy(TEAMS, {(TenantId(tenant), tier): Quota(ceiling=num_gpus)})


def workload(
    attempts: Sequence[RunningAttempt], tenancy: Tenancy, reclaims: Sequence[StandingReclaim] = ()
) -> Workload:
    return Workload(NOW_MS, tuple(attempts), tuple(reclaims), tenancy=tenancy)


def spot_on(*hosts: str) -> list[RunningAttempt]:
    return [running(f"on-{name}", of_host(name), tenant=f"owner-of-{name}") for name in hosts]


def decide(
    queue: Sequence[WaitingJob], tenancy: Tenancy, reclaims: Sequence[StandingReclaim] = (), num_free: int = 0
) -> Plan:
    """Spot jobs run on r0h0 and r0h1; ``num_free`` more hosts are idle."""
    attempts = spot_on("r0h0", "r0h1")
    fleet = racks({"r0": [0, 0, *[8] * num_free]})
    return plan(fleet, list(queue), DEFAULT_POLICY, workload(attempts, tenancy, reclaims))


def reserved(name: str, *, at: int = 0, tenant: str = "waiter", nodes: int = 1) -> WaitingJob:
    return job(name, nodes=nodes, gpus=8, tier="reserved", at=at, tenant=tenant)


def reported(decided: Plan, name: str) -> Waiting:
    return next(one for one in decided.waiting if one.job_id == name)


def beneficiaries(decided: Plan) -> list[str]:
    return [reclaim.beneficiary for reclaim in decided.reclaims]


def test_of_two_jobs_for_one_of_which_there_is_quota_one_alone_reclaims() -> None:
    decided = decide([reserved("first"), reserved("second", at=1)], at_most(8))
    assert beneficiaries(decided) == ["first"]
    verdict = reported(decided, "second").verdict
    assert (verdict.binding, verdict.reasons[0].num_gpus) == (WaitReason.QUOTA, 8)
    assert verdict.why == (
        "no quota is left for 8 GPUs: its tenant holds 0 of the 8 GPUs that its quota allows in the tier reserved, "
        "and 8 are kept for pending jobs"
    )
    assert beneficiaries(decide([reserved("first"), reserved("second", at=1)], at_most(16))) == ["first", "second"]


def test_a_department_has_no_more_reclaimed_than_its_quota_lets_in_whichever_team_requests() -> None:
    queue = [reserved("first", tenant="one"), reserved("second", at=1, tenant="other")]
    decided = decide(queue, at_most(8, "department"))
    assert beneficiaries(decided) == ["first"]
    assert reported(decided, "second").verdict.binding is WaitReason.QUOTA_ABOVE


def test_other_tenants_and_tiers_have_nothing_kept_from_them() -> None:
    stranger = reserved("second", at=1, tenant="stranger")
    assert beneficiaries(decide([reserved("first"), stranger], at_most(8))) == ["first", "second"]
    on_demand = replace(reserved("second", at=1), tier="on_demand")
    assert beneficiaries(decide([reserved("first"), on_demand], at_most(8))) == ["first", "second"]


def test_whoever_comes_first_the_beneficiary_of_an_earlier_cycle_has_the_quota() -> None:
    begun = [standing("on-r0h0", "first", of_host("r0h0"))]
    for came in (-1, 1):
        decided = decide([reserved("first"), reserved("second", at=came)], at_most(8), begun, num_free=1)
        assert [item.job_id for item in decided.placements] == ["first"], "it needs its victim no more"
        assert [item.victim for item in decided.withdrawals] == ["on-r0h0"]


def test_an_earlier_reclaim_keeps_its_quota_from_what_comes_before_in_the_queue() -> None:
    """Else the victim would leave, and no job could have its GPUs."""
    begun = [standing("on-r0h0", "first", of_host("r0h0"))]
    decided = decide([reserved("second", at=-1), reserved("first")], at_most(8), begun)
    assert (decided.placements, decided.reclaims, decided.withdrawals, decided.lapses) == ((), (), (), ())
    assert "8 are kept for pending jobs" in reported(decided, "second").why
    assert "GPUs are being reclaimed for it" in reported(decided, "first").why


def test_the_beneficiary_starts_within_the_quota_that_is_kept_for_it() -> None:
    begun = [standing("gone", "first", of_host("r0h2"))]
    decided = decide([reserved("first"), reserved("second", at=1)], at_most(8), begun, num_free=1)
    assert [item.job_id for item in decided.placements] == ["first"]
    assert "holds 8 of the 8 GPUs that its quota allows in the tier reserved" in reported(decided, "second").why
    assert "kept" not in reported(decided, "second").why


def test_what_is_withdrawn_keeps_nothing() -> None:
    """A quota that was lowered lets the first in no more; the second still may start."""
    begun = [standing("on-r0h0", "first", of_host("r0h0"))]
    queue = [reserved("first", nodes=2), reserved("second", at=1)]
    decided = decide(queue, at_most(8), begun, num_free=1)
    assert [item.victim for item in decided.withdrawals] == ["on-r0h0"]
    assert [item.job_id for item in decided.placements] == ["second"]


def test_what_an_interrupted_gang_will_go_on_with_is_kept_of_its_quota() -> None:
    """It waits for a host in the place of the one that it lost; others have the rest of the quota alone."""
    fleet = racks({"r0": [8, 0], "r1": [8], "r2": [8]})
    parts = tuple((NodeId(name), tuple(map(GpuUuid, of_host(name)))) for name in ("r0h0", "r0h1"))
    gang = replace(reserved("gang", nodes=2), interrupted_ms=NOW_MS, required_level="rack", keep=parts)
    given = replace(workload([], at_most(16)), holds=(ResumeHold(JobId("gang"), parts[0][1]),))
    decided = plan(fleet, [gang, reserved("one", at=1), reserved("two", at=2)], DEFAULT_POLICY, given)
    assert [item.job_id for item in decided.placements] == ["one"]
    assert "holds 8 of the 16 GPUs" in reported(decided, "two").why
    assert "8 are kept for pending jobs" in reported(decided, "two").why


def test_what_a_gang_will_go_on_with_is_kept_of_its_quota_before_it_is_in_the_queue() -> None:
    own = ResumeHold(JobId("gang"), tuple(map(GpuUuid, of_host("r0h0"))), TenantId("waiter"), "reserved")
    given = replace(workload([], at_most(16)), holds=(own,))
    fleet = racks({"r0": [8], "r1": [8], "r2": [8]})
    decided = plan(fleet, [reserved("one"), reserved("two", at=1)], DEFAULT_POLICY, given)
    assert [item.job_id for item in decided.placements] == ["one"]
    assert "8 are kept for pending jobs" in reported(decided, "two").why


def test_what_a_running_gang_is_on_hold_counts_once() -> None:
    """It saves and leaves for another size: as long as it runs it has its quota by what it runs on."""
    own = ResumeHold(JobId("job-of-on-r0h0"), tuple(map(GpuUuid, of_host("r0h0"))), TenantId("waiter"), "reserved")
    runs = running("on-r0h0", of_host("r0h0"), tier="reserved", tenant="waiter")
    assert runs.job_id == own.job_id
    given = replace(workload([runs], at_most(16)), holds=(own,))
    decided = plan(racks({"r0": [0], "r1": [8]}), [reserved("one")], DEFAULT_POLICY, given)
    assert [item.job_id for item in decided.placements] == ["one"]


def test_a_pending_job_is_reported_the_quota_that_would_do_next_to_what_is_kept() -> None:
    fleet = racks({"r0": [0, 0, 8]})
    begun = [standing(f"on-{name}", "gang", [*of_host("r0h0"), *of_host("r0h1")]) for name in ("r0h0", "r0h1")]
    queue = [reserved("gang", nodes=2), reserved("single", at=1)]
    asked = Question(DEFAULT_POLICY, fleet, queue, workload(spot_on("r0h0", "r0h1"), at_most(16), begun))
    state = FleetState(fleet, DEFAULT_POLICY)
    decided = plan_on(state, queue, DEFAULT_POLICY, asked.workload)
    assert reported(decided, "single").verdict.binding is WaitReason.QUOTA
    changes = answer(state, asked, decided, queue[1], 0.0).changes
    assert Change("quota.ceiling_gpus", 24) in changes
    assert {change.field for change in changes}.isdisjoint({"fleet.nodes", "shape.nodes"}), (
        "these would not let it start"
    )


def waiting(
    name: str, *, nodes: int = 1, ago: float = 0, wall: float | None = None, tenant: str = "waiter", passed: float = 0
) -> WaitingJob:
    """On demand, queued ``ago`` minutes ago, with a wall time of ``wall`` minutes; ``passed``: GPU-seconds."""
    came = job(name, nodes=nodes, gpus=8, at=NOW_MS - int(ago * MINUTE_MS), tenant=tenant)
    return replace(came, expected_s=None if wall is None else wall * 60, overtaken_gpu_s=passed)


def busy(name: str, tenant: str = "owner", ends: float | None = 60) -> RunningAttempt:
    return running(f"on-{name}", of_host(name), tier="on_demand", tenant=tenant, ends_minutes=ends)


def on_three(queue: Sequence[WaitingJob], attempts: Sequence[RunningAttempt], tenancy: Tenancy) -> Plan:
    """Hosts r0h0 to r0h2, of which ``attempts`` have what they have; the others are idle."""
    fleet = hold(racks({"r0": [8, 8, 8]}), [uuid for one in attempts for uuid in one.gpus])
    return plan(fleet, list(queue), BOUNDED, workload(attempts, tenancy))


def placed(decided: Plan) -> list[str]:
    return [item.job_id for item in decided.placements]


BOUNDED = DEFAULT_POLICY.model_copy(
    update={"queue": DEFAULT_POLICY.queue.model_copy(update={"overtaken_work_bound_s": 100.0})}
)
CONSERVATIVE = queueing(BOUNDED, backfill="conservative")
ENOUGH = 100.0 * 24
"""What all 24 GPUs do in the bound."""
OTHERS = [busy("r0h0"), busy("r0h1")]
"""They end in an hour, and are not the waiting tenant's."""


def test_on_the_quota_of_a_gang_on_hold_only_what_is_gone_before_runs() -> None:
    gang = waiting("gang", nodes=2, ago=600, wall=60)
    limit = at_most(16, tier="on_demand")
    for wall, passes in [(59, True), (60, True), (61, False), (None, False)]:
        decided = on_three([gang, waiting("small", wall=wall)], OTHERS, limit)
        assert placed(decided) == (["small"] if passes else []), wall
        assert [held.job_id for held in decided.holds] == ["gang"]
    verdict = reported(on_three([gang, waiting("small")], OTHERS, limit), "small").verdict
    assert (verdict.binding, verdict.reasons[0].num_gpus) == (WaitReason.QUOTA, 8)
    assert "holds 0 of the 16 GPUs" in verdict.why
    assert "16 are kept for pending jobs" in verdict.why


def test_what_the_gang_leaves_of_its_quota_others_may_have() -> None:
    """Its tenant may hold four hosts and has one: once that is back, there is one more than the gang's three."""
    gang = replace(waiting("gang", nodes=3, ago=600, wall=60), required_level="rack")
    for ends, passes in [(30, True), (60, True), (90, False), (None, False)]:
        attempts = [busy("r1h0", "waiter", ends), *map(busy, ("r0h0", "r0h1", "r0h2"))]
        given = workload(attempts, at_most(32, tier="on_demand"))
        fleet = racks({"r0": [0, 0, 0], "r1": [0, 8]})
        decided = plan(fleet, [gang, waiting("small", wall=600)], BOUNDED, given)
        assert [(held.job_id, held.until_ms) for held in decided.holds] == [("gang", NOW_MS + 60 * MINUTE_MS)]
        assert placed(decided) == (["small"] if passes else []), ends


def test_other_tenants_and_tiers_pass_a_gang_on_hold_of_which_they_take_no_quota() -> None:
    gang = waiting("gang", nodes=2, ago=600, wall=60)
    limit = at_most(16, tier="on_demand")
    assert placed(on_three([gang, waiting("small", tenant="stranger")], OTHERS, limit)) == ["small"]
    assert placed(on_three([gang, replace(waiting("small"), tier="spot")], OTHERS, limit)) == ["small"]


def test_a_team_does_not_take_the_departments_quota_from_the_gang_on_hold_of_another() -> None:
    queue = [waiting("gang", nodes=2, ago=600, wall=60, tenant="one"), waiting("small", tenant="other")]
    decided = on_three(queue, OTHERS, at_most(16, "department", "on_demand"))
    assert placed(decided) == []
    assert reported(decided, "small").verdict.binding is WaitReason.QUOTA_ABOVE


def test_an_elastic_job_takes_of_the_quota_no_more_than_a_gang_on_hold_leaves() -> None:
    gang = waiting("gang", nodes=2, ago=600, wall=60)
    elastic = replace(waiting("elastic", nodes=2), min_nodes=1, max_nodes=2)
    fleet = racks({"r0": [0, 8, 8]})
    attempts = [busy("r0h0")]
    gang = replace(gang, nodes=3)
    for ceiling, hosts in [(48, 2), (32, 1), (24, 0)]:
        wide = [*fleet, *racks({"r1": [8, 8]})]
        given = workload(attempts, at_most(ceiling, tier="on_demand"))
        decided = plan(wide, [replace(gang, required_level="rack"), elastic], BOUNDED, given)
        assert [len(item.parts) for item in decided.placements] == ([hosts] if hosts else []), ceiling


def test_of_two_gangs_one_alone_is_on_hold_for_which_the_quota_lets_start() -> None:
    queue = [waiting("first", nodes=2, ago=600), waiting("second", nodes=2, ago=500)]
    both = queueing(BOUNDED, holds_per_cohort=2)
    fleet = racks({"r0": [0, 0], "r1": [0, 0]})
    attempts = [busy(name) for name in ("r0h0", "r0h1", "r1h0", "r1h1")]
    for ceiling, held in [(16, ["first"]), (32, ["first", "second"])]:
        decided = plan(fleet, queue, both, workload(attempts, at_most(ceiling, tier="on_demand")))
        assert [one.job_id for one in decided.holds] == held


def test_one_that_its_quota_keeps_waiting_has_it_kept_once_enough_work_has_passed_it() -> None:
    """The tenant holds 8 of 16; the gang starts when those are back, and no job takes the other 8 beyond then."""
    attempts, limit = [busy("r0h0", "waiter")], at_most(16, tier="on_demand")
    for passed, wall, passes in [
        (ENOUGH, 59, True),
        (ENOUGH, 61, False),
        (ENOUGH, None, False),
        (ENOUGH - 1, None, True),
    ]:
        gang = waiting("gang", nodes=2, ago=600, wall=60, passed=passed)
        decided = on_three([gang, waiting("small", wall=wall)], attempts, limit)
        assert placed(decided) == (["small"] if passes else []), (passed, wall)
        assert ("kept for it from about 1970-01-01T17:40:00Z" in reported(decided, "gang").why) == (passed == ENOUGH)


def test_it_is_kept_within_a_department_and_where_is_unknown_when_those_before_it_end() -> None:
    gang = waiting("gang", nodes=2, ago=600, wall=60, tenant="one", passed=ENOUGH)
    small = waiting("small", tenant="other", wall=60)
    limit = at_most(16, "department", "on_demand")
    assert placed(on_three([gang, small], [busy("r0h0", "other")], limit)) == ["small"], "it has ended by then"
    assert placed(on_three([gang, replace(small, expected_s=3660.0)], [busy("r0h0", "other")], limit)) == []
    believed = [busy("r0h0", "other", ends=None)]  # it has run for two hours, and so is expected to run two more
    assert placed(on_three([gang, replace(small, expected_s=7200.0)], believed, limit)) == ["small"]
    assert placed(on_three([gang, replace(small, expected_s=7260.0)], believed, limit)) == []


def test_nothing_is_kept_for_one_that_could_never_start() -> None:
    attempts, small = [busy("r0h0", "waiter")], waiting("small")
    beyond = waiting("beyond", nodes=3, ago=600, passed=ENOUGH)
    assert placed(on_three([beyond, small], attempts, at_most(16, tier="on_demand"))) == ["small"], "its quota is less"
    large = waiting("large", nodes=4, ago=600, passed=ENOUGH)
    assert placed(on_three([large, small], attempts, at_most(32, tier="on_demand"))) == ["small"], "no rack has four"


def test_none_is_reclaimed_for_a_job_whose_quota_is_kept_for_a_gang_on_hold() -> None:
    gang, small = reserved("gang", nodes=2, at=-1), reserved("small")
    owners = [replace(one, tier="reserved") for one in OTHERS]
    given = workload([*owners, *spot_on("r0h2")], at_most(16))
    for policy in (BOUNDED, CONSERVATIVE):
        decided = plan(racks({"r0": [0, 0, 0]}), [gang, small], policy, given)
        assert (placed(decided), decided.reclaims) == ([], ())
        assert "gang" in [held.job_id for held in decided.holds]
        without = plan(racks({"r0": [0, 0, 0]}), [gang, small], policy, replace(given, tenancy=Tenancy()))
        assert beneficiaries(without) == ["small"]


def test_conservative_backfill_keeps_it_too() -> None:
    gang = waiting("gang", nodes=2, ago=600, wall=60, passed=ENOUGH)
    given = workload([busy("r0h0", "waiter")], at_most(16, tier="on_demand"))
    fleet = racks({"r0": [0, 8, 8]})
    for wall, passes in [(59, True), (61, False)]:
        decided = plan(fleet, [gang, waiting("small", wall=wall)], CONSERVATIVE, given)
        assert placed(decided) == (["small"] if passes else []), wall


def test_ten_thousand_of_all_lengths_behind_a_gang_on_hold_are_notified_of_its_quota() -> None:
    gang = waiting("gang", nodes=2, ago=60_000, wall=60)
    queue = [gang, *(waiting(f"j{n:05}", ago=n / 100, wall=61 + n) for n in range(10_000))]
    decided = on_three(queue, OTHERS, at_most(16, tier="on_demand"))
    assert (placed(decided), len(decided.waiting)) == ([], 10_001)


def test_a_pending_job_for_quota_that_is_kept_is_reported_the_wall_time_that_ends_before_the_gang_starts() -> None:
    fleet = racks({"r0": [0, 0], "r1": [8]})
    gang, small = waiting("gang", nodes=2, ago=600, wall=60), waiting("small")
    asked = Question(BOUNDED, fleet, [gang, small], workload(OTHERS, at_most(16, tier="on_demand")))
    state = FleetState(fleet, BOUNDED)
    decided = plan_on(state, asked.queue, BOUNDED, asked.workload)
    assert reported(decided, "small").verdict.binding is WaitReason.QUOTA
    changes = answer(state, asked, decided, small, 30.0).changes
    assert Change("wall_time_s", 3510.0) in changes, "without its grace, and a minute to type it"
    assert {change.field for change in changes} == {"wall_time_s", "tier"}, "a larger fleet would not let it start"
