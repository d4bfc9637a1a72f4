"""Quota that is kept for who waits: GPUs on their way to one job let no other of its tenant, or department, in."""

from collections.abc import Sequence
from dataclasses import replace

from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.policy import DEFAULT_POLICY
from muster.domain.wait_reasons import WaitReason
from scheduler.answer import Change, answer
from scheduler.model import OwnHold, Plan, Question, RunningAttempt, StandingReclaim, Waiting, WaitingJob, Workload
from scheduler.planner import plan, plan_on
from scheduler.tenancy import Member, Quota, Tenancy
from scheduler.topology import FleetState
from tests.scheduler.fleets import NOW_MS, job, of_host, racks, running, standing

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
    """Spot jobs run on r0h0 and r0h1; ``num_free`` hosts are idle beside these."""
    attempts = spot_on("r0h0", "r0h1")
    fleet = racks({"r0": [0, 0, *[8] * num_free]})
    return plan(fleet, list(queue), DEFAULT_POLICY, workload(attempts, tenancy, reclaims))


def reserved(name: str, *, at: int = 0, tenant: str = "waiter", nodes: int = 1) -> WaitingJob:
    return job(name, nodes=nodes, gpus=8, tier="reserved", at=at, tenant=tenant)


def told(decided: Plan, name: str) -> Waiting:
    return next(one for one in decided.waiting if one.job_id == name)


def beneficiaries(decided: Plan) -> list[str]:
    return [reclaim.beneficiary for reclaim in decided.reclaims]


def test_of_two_jobs_for_one_of_which_there_is_quota_one_alone_reclaims() -> None:
    decided = decide([reserved("first"), reserved("second", at=1)], at_most(8))
    assert beneficiaries(decided) == ["first"]
    verdict = told(decided, "second").verdict
    assert (verdict.binding, verdict.reasons[0].num_gpus) == (WaitReason.QUOTA, 8)
    assert verdict.why == (
        "needs 8 GPUs, but its tenant holds 0 of the 8 GPUs that its quota allows in the tier reserved, "
        "and 8 are kept for jobs that wait"
    )
    assert beneficiaries(decide([reserved("first"), reserved("second", at=1)], at_most(16))) == ["first", "second"]


def test_a_department_has_no_more_reclaimed_than_its_quota_lets_in_whichever_team_asks() -> None:
    queue = [reserved("first", tenant="one"), reserved("second", at=1, tenant="other")]
    decided = decide(queue, at_most(8, "department"))
    assert beneficiaries(decided) == ["first"]
    assert told(decided, "second").verdict.binding is WaitReason.QUOTA_ABOVE


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


def test_an_earlier_reclaim_keeps_its_quota_from_who_comes_before_in_the_queue() -> None:
    """Else the victim would leave, and its GPUs find nobody who may have them."""
    begun = [standing("on-r0h0", "first", of_host("r0h0"))]
    decided = decide([reserved("second", at=-1), reserved("first")], at_most(8), begun)
    assert (decided.placements, decided.reclaims, decided.withdrawals, decided.lapses) == ((), (), (), ())
    assert "8 are kept for jobs that wait" in told(decided, "second").why
    assert "GPUs are being reclaimed for it" in told(decided, "first").why


def test_the_beneficiary_starts_within_the_quota_that_is_kept_for_it() -> None:
    begun = [standing("gone", "first", of_host("r0h2"))]
    decided = decide([reserved("first"), reserved("second", at=1)], at_most(8), begun, num_free=1)
    assert [item.job_id for item in decided.placements] == ["first"]
    assert "holds 8 of the 8 GPUs that its quota allows in the tier reserved" in told(decided, "second").why
    assert "kept" not in told(decided, "second").why


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
    given = replace(workload([], at_most(16)), holds=(OwnHold(JobId("gang"), parts[0][1]),))
    decided = plan(fleet, [gang, reserved("one", at=1), reserved("two", at=2)], DEFAULT_POLICY, given)
    assert [item.job_id for item in decided.placements] == ["one"]
    assert "holds 8 of the 16 GPUs" in told(decided, "two").why
    assert "8 are kept for jobs that wait" in told(decided, "two").why


def test_who_waits_is_told_the_quota_that_would_do_beside_what_is_kept() -> None:
    fleet = racks({"r0": [0, 0, 8]})
    begun = [standing(f"on-{name}", "gang", [*of_host("r0h0"), *of_host("r0h1")]) for name in ("r0h0", "r0h1")]
    queue = [reserved("gang", nodes=2), reserved("single", at=1)]
    asked = Question(DEFAULT_POLICY, fleet, queue, workload(spot_on("r0h0", "r0h1"), at_most(16), begun))
    state = FleetState(fleet, DEFAULT_POLICY)
    decided = plan_on(state, queue, DEFAULT_POLICY, asked.workload)
    assert told(decided, "single").verdict.binding is WaitReason.QUOTA
    changes = answer(state, asked, decided, queue[1], 0.0).changes
    assert Change("quota.ceiling_gpus", 24) in changes
    assert {change.field for change in changes}.isdisjoint({"fleet.nodes", "shape.nodes"}), (
        "these would not let it start"
    )
