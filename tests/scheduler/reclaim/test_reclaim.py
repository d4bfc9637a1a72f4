"""Reclaim as a contract: victims, beneficiaries and costs, and when it is waited for, refused or withdrawn."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from muster.domain.ids import NodeId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.model import GpuView, Plan, ReclaimLoss, RunningAttempt, StandingReclaim, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.quota.tenancy import Tenancy
from scheduler.solve.placement_rule import PlacementRule, Slice
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, host, job, of_host, racks, running, standing

OWNER = TenantId("owner")
GENEROUS = {OWNER: 1_000}


def decide(
    gpus: list[GpuView],
    queue: list[WaitingJob],
    attempts: Sequence[RunningAttempt],
    *,
    reclaims: Sequence[StandingReclaim] = (),
    losses: Sequence[ReclaimLoss] = (),
    peaks: dict[TenantId, int] = GENEROUS,
) -> Plan:
    held = hold(gpus, [uuid for attempt in attempts for uuid in attempt.gpus])
    workload = Workload(NOW_MS, tuple(attempts), tuple(reclaims), tuple(losses), peaks)
    return plan(held, queue, DEFAULT_POLICY, workload)


def victims(decided: Plan) -> list[str]:
    return [reclaim.victim for reclaim in decided.reclaims]


def test_a_reserved_gang_takes_spot_back_with_notice_and_its_place_is_on_hold() -> None:
    queue = [job("gang", nodes=2, gpus=8, tier="reserved"), job("other", gpus=8, at=1)]
    decided = decide(racks({"r0": [8, 8]}), queue, [running("v", of_host("r0h0"), saved_minutes=1)])
    (reclaim,) = decided.reclaims
    assert (reclaim.victim, reclaim.beneficiary, reclaim.notice_s) == ("v", "gang", 120.0)
    assert list(reclaim.gpus) == of_host("r0h0")
    assert sorted(reclaim.hold) == sorted([*of_host("r0h0"), *of_host("r0h1")])
    assert reclaim.cost_gpu_s == 8 * (60 + 120)
    assert decided.placements == (), "the free host is held for the gang: the other job may not take it"
    assert "GPUs are being reclaimed for it, due by" in decided.waiting[0].why


def test_what_is_on_hold_goes_to_its_beneficiary_and_no_other() -> None:
    queue = [job("gang", nodes=2, gpus=8, tier="spot"), job("other", gpus=8, tier="reserved")]
    held = standing("gone", "gang", [*of_host("r0h0"), *of_host("r0h1")])
    decided = decide(racks({"r0": [8, 8]}), queue, [], reclaims=[held])
    assert [placement.job_id for placement in decided.placements] == ["gang"]
    assert decided.withdrawals == (), "its victim has released its GPUs: there is nothing to give back"


@pytest.mark.parametrize("is_delivered", [True, False])
def test_a_job_ahead_counts_on_what_a_notice_frees_once_the_notice_is_delivered(is_delivered: bool) -> None:  # noqa: FBT001  # a parameter
    """Until then ``behind`` could start elsewhere, and its start would withdraw the notice to ``v``."""
    v, other = running("v", of_host("r0h0"), ends_minutes=600), running("w", of_host("r0h1"), ends_minutes=600)
    if is_delivered:
        v = replace(v, ends_ms=NOW_MS + MINUTE_MS, is_stopping=True)
    queue = [job("ahead", gpus=4, tier="reserved"), job("behind", gpus=4, tier="on_demand", at=1)]
    reclaims = [replace(standing("v", "behind", of_host("r0h0", 4)), is_delivered=is_delivered)]
    decided = decide(racks({"r0": [8, 8]}), queue, [v, other], reclaims=reclaims)
    assert (victims(decided), decided.withdrawals) == ([] if is_delivered else ["w"], ())


def test_no_attempt_is_notified_for_a_job_ahead_too() -> None:
    """``v`` would lose least, but it has a notice for ``behind``, on which ``ahead`` does not count."""
    attempts = [running("v", of_host("r0h0"), saved_minutes=1), running("w", of_host("r0h1"), saved_minutes=50)]
    queue = [job("ahead", gpus=4, tier="reserved"), job("behind", gpus=4, tier="on_demand", at=1)]
    decided = decide(racks({"r0": [8, 8]}), queue, attempts, reclaims=[standing("v", "behind", of_host("r0h0", 4))])
    assert victims(decided) == ["w"]


def test_a_notice_stands_though_it_needs_what_another_frees_whose_job_is_behind_it_now() -> None:
    """The hold of ``ahead`` has the other half of v's host; v was notified for ``behind``, which was ahead then."""
    attempts = [running(name, of_host(node), ends_minutes=600) for name, node in (("v", "r0h0"), ("w", "r0h1"))]
    queue = [job("ahead", nodes=2, gpus=4, tier="reserved"), job("behind", gpus=4, tier="reserved", at=1)]
    reclaims = [
        standing("v", "behind", of_host("r0h0", 4)),
        standing("w", "ahead", [*of_host("r0h0", 4, 4), *of_host("r0h1", 4)]),
    ]
    decided = decide(racks({"r0": [8, 8]}), queue, attempts, reclaims=reclaims)
    assert (victims(decided), decided.withdrawals) == ([], ())


def test_a_beneficiary_waits_for_its_reclaim_and_notifies_none_twice() -> None:
    attempts = [running("v", of_host("r0h0")), running("w", of_host("r1h0"))]
    queue = [job("gang", gpus=8, tier="reserved"), job("other", gpus=8, at=1)]
    reclaim = standing("v", "gang", of_host("r0h0"))
    decided = decide(racks({"r0": [8], "r1": [8]}), queue, attempts, reclaims=[reclaim])
    assert victims(decided) == ["w"]
    assert [item.beneficiary for item in decided.reclaims] == ["other"]
    assert decided.withdrawals == ()


def test_a_reclaim_is_withdrawn_when_its_beneficiary_waits_no_more() -> None:
    reclaim = standing("v", "gang", of_host("r0h0"))
    decided = decide(racks({"r0": [8]}), [], [running("v", of_host("r0h0"))], reclaims=[reclaim])
    assert [(item.victim, item.beneficiary) for item in decided.withdrawals] == [("v", "gang")]


def test_a_reclaim_is_withdrawn_when_its_beneficiary_fits_elsewhere() -> None:
    reclaim = standing("v", "gang", of_host("r0h0"))
    queue = [job("gang", gpus=8, tier="reserved")]
    decided = decide(racks({"r0": [8], "r1": [8]}), queue, [running("v", of_host("r0h0"))], reclaims=[reclaim])
    assert decided.placements[0].parts[0][0] == "r1h0"
    assert [item.victim for item in decided.withdrawals] == ["v"]


def test_a_reclaim_that_would_no_longer_make_room_is_withdrawn_and_not_chosen_again_at_once() -> None:
    attempts = [running("v", of_host("r0h0")), running("fixed", of_host("r0h1"), tier="reserved")]
    reclaim = standing("v", "gang", [*of_host("r0h0"), *of_host("r0h1")])
    queue = [job("gang", nodes=2, gpus=8, tier="reserved")]
    decided = decide(racks({"r0": [8, 8]}), queue, attempts, reclaims=[reclaim])
    assert [item.victim for item in decided.withdrawals] == ["v"]
    assert decided.reclaims == ()
    assert "planned again" in decided.waiting[0].why


def test_the_set_that_loses_least_work_is_taken_and_the_runner_up_is_named() -> None:
    attempts = [
        running("fresh0", of_host("r0h0"), saved_minutes=1),
        running("fresh1", of_host("r0h1"), saved_minutes=1),
        running("stale", [*of_host("r1h0"), *of_host("r1h1")], saved_minutes=50),
    ]
    gpus = racks({"r0": [8, 8], "r1": [8, 8]})
    decided = decide(gpus, [job("gang", nodes=2, gpus=8, tier="reserved", required="rack")], attempts)
    assert victims(decided) == ["fresh0", "fresh1"]
    assert decided.reclaims[0].runner_up is not None
    assert decided.reclaims[0].runner_up.victims == ("stale",)
    assert decided.reclaims[0].runner_up.cost_gpu_s == 16 * (3000 + 120)


def test_one_dear_gang_is_taken_where_many_cheap_jobs_would_cost_more() -> None:
    singles = [running(f"s{n}", of_host(f"r0h{n}"), saved_minutes=2) for n in range(4)]
    gang = running("gang", [uuid for n in range(4) for uuid in of_host(f"r1h{n}")], saved_minutes=1)
    gpus = racks({"r0": [8] * 4, "r1": [8] * 4})
    assert victims(decide(gpus, [job("j", nodes=4, gpus=8, tier="reserved")], [*singles, gang])) == ["gang"]


def test_nothing_is_evicted_where_no_domain_would_suffice() -> None:
    attempts = [running(f"v{n}", of_host(f"r{n}h0")) for n in range(3)]
    gpus = racks({"r0": [8], "r1": [8], "r2": [8]})
    assert decide(gpus, [job("j", nodes=2, gpus=8, tier="reserved", required="rack")], attempts).reclaims == ()


def test_scattered_gpus_that_make_no_host_are_left_alone() -> None:
    attempts = [
        running(f"{kind}{n}", of_host(f"r0h{n}", 4, start), tier=tier)
        for n in range(2)
        for kind, tier, start in (("spot", "spot", 0), ("kept", "on_demand", 4))
    ]
    assert decide(racks({"r0": [8, 8]}), [job("j", gpus=8, tier="reserved")], attempts).reclaims == ()


@pytest.mark.parametrize("tier", ["on_demand", "reserved"])
def test_a_tier_without_notice_is_never_reclaimed(tier: str) -> None:
    attempts = [running("v", of_host("r0h0"), tier=tier)]
    assert decide(racks({"r0": [8]}), [job("j", gpus=8, tier="reserved")], attempts).reclaims == ()


def test_spot_takes_nothing_from_spot() -> None:
    assert decide(racks({"r0": [8]}), [job("j", gpus=8, tier="spot")], [running("v", of_host("r0h0"))]).reclaims == ()


def test_a_young_attempt_is_no_victim_and_the_job_is_reported_from_when_on_it_may_be() -> None:
    decided = decide(
        racks({"r0": [8]}), [job("j", gpus=8, tier="reserved")], [running("v", of_host("r0h0"), minutes=5)]
    )
    assert decided.reclaims == ()
    assert "reclaim waits until 1970-01-01T17:05:00Z" in decided.waiting[0].why


def test_a_pending_job_for_minimum_run_times_behind_others_is_reported_that_it_is_their_moment() -> None:
    queue = [job(name, gpus=8, tier="reserved", at=number) for number, name in enumerate("abc")]
    young = [running("x", of_host("r0h0"), minutes=20), running("y", of_host("r0h1"), minutes=5)]
    first, *others = (one.why for one in decide(racks({"r0": [8, 8]}), queue, young).waiting)
    its_own = "reclaim waits until 1970-01-01T16:50:00Z, when enough jobs have had their minimum run time"
    assert first.endswith(its_own)
    assert all(why.endswith("their minimum run time, and helps jobs before it first") for why in others)


def test_a_tenant_loses_no_more_than_its_cap_in_a_window() -> None:
    attempts = [running(f"v{n}", of_host(f"r0h{n}")) for n in range(4)]
    gpus, queue = racks({"r0": [8] * 4}), [job("j", gpus=8, tier="reserved")]
    lost = ReclaimLoss(OWNER, 8, NOW_MS - 10 * MINUTE_MS)
    decided = decide(gpus, queue, attempts, losses=[lost], peaks={})
    assert decided.reclaims == ()
    assert (
        "the cap on what a tenant may lose to reclaim in 60 minutes leaves too little for it" in decided.waiting[0].why
    )
    past = replace(lost, at_ms=NOW_MS - 61 * MINUTE_MS)
    assert len(decide(gpus, queue, attempts, losses=[past], peaks={}).reclaims) == 1


def test_another_tenants_victims_are_taken_where_the_cheapest_tenant_is_at_its_cap() -> None:
    attempts = [
        running("capped", of_host("r0h0"), saved_minutes=0),
        running("other", of_host("r0h1"), tenant="rich", saved_minutes=60),
    ]
    decided = decide(
        racks({"r0": [8, 8]}),
        [job("j", gpus=8, tier="reserved")],
        attempts,
        losses=[ReclaimLoss(OWNER, 8, NOW_MS)],
        peaks={},
    )
    assert victims(decided) == ["other"]


def test_the_smallest_running_job_may_be_lost_whatever_the_share() -> None:
    assert victims(
        decide(racks({"r0": [8]}), [job("j", gpus=8, tier="reserved")], [running("v", of_host("r0h0"))], peaks={})
    ) == ["v"]


def test_standing_reclaims_count_toward_the_cap() -> None:
    attempts = [running(f"v{n}", of_host(f"r0h{n}")) for n in range(4)]
    queue = [job("first", gpus=8, tier="reserved"), job("second", gpus=8, tier="reserved", at=1)]
    reclaim = standing("v0", "first", of_host("r0h0"))
    assert decide(racks({"r0": [8] * 4}), queue, attempts, reclaims=[reclaim], peaks={}).reclaims == ()


def test_one_gang_does_not_take_a_tenant_past_its_cap_by_two_victims() -> None:
    attempts = [running(f"v{n}", of_host(f"r0h{n}")) for n in range(2)]
    decided = decide(racks({"r0": [8, 8]}), [job("j", nodes=2, gpus=8, tier="reserved")], attempts, peaks={})
    assert decided.reclaims == ()
    assert "the cap on what a tenant may lose" in decided.waiting[0].why


def test_two_gangs_of_one_cycle_do_not_take_a_tenant_past_its_cap() -> None:
    attempts = [running(f"v{n}", of_host(f"r0h{n}")) for n in range(2)]
    queue = [job("first", gpus=8, tier="reserved"), job("second", gpus=8, tier="reserved", at=1)]
    assert len(decide(racks({"r0": [8, 8]}), queue, attempts, peaks={}).reclaims) == 1


def test_a_victim_that_was_let_go_in_this_cycle_is_chosen_for_no_other() -> None:
    attempts = [running("v", of_host("r0h0"))]
    queue = [job("next", gpus=8, tier="reserved")]
    decided = decide(racks({"r0": [8]}), queue, attempts, reclaims=[standing("v", "cancelled", of_host("r0h0"))])
    assert [item.victim for item in decided.withdrawals] == ["v"]
    assert decided.reclaims == ()


def test_what_ends_within_the_notice_is_waited_for() -> None:
    attempts = [running("v", of_host("r0h0")), running("ending", of_host("r0h1"), tier="reserved", ends_minutes=1.5)]
    decided = decide(racks({"r0": [8, 8]}), [job("j", gpus=8, tier="reserved")], attempts)
    assert decided.reclaims == ()
    assert "enough GPUs become free by 1970-01-01T16:41:30Z without reclaim" in decided.waiting[0].why


def test_what_ends_later_than_the_notice_is_not_waited_for() -> None:
    attempts = [running("v", of_host("r0h0"), ends_minutes=30)]
    assert victims(decide(racks({"r0": [8]}), [job("j", gpus=8, tier="reserved")], attempts)) == ["v"]


def test_what_a_victim_gives_beyond_the_beneficiary_serves_the_next_job_without_another_victim() -> None:
    attempts = [running("wide", of_host("r0h0"), saved_minutes=1), running("w", of_host("r0h1"))]
    queue = [job("first", gpus=4, tier="reserved"), job("second", gpus=4, tier="reserved", at=1)]
    decided = decide(racks({"r0": [8, 8]}), queue, attempts)
    assert victims(decided) == ["wide"]
    assert "without reclaim" in decided.waiting[1].why


def test_gpus_that_the_beneficiarys_tier_does_not_admit_are_not_worth_a_victim() -> None:
    gpus = host("a", 8)
    cordoned = [replace(gpus[0], facts=replace(gpus[0].facts, is_cordoned=True)), *gpus[1:]]
    assert decide(cordoned, [job("j", gpus=8, tier="reserved")], [running("v", of_host("a"))]).reclaims == ()


def test_a_second_cycle_without_change_decides_nothing_new() -> None:
    attempts = [running("v", of_host("r0h0")), running("w", of_host("r0h1"))]
    gpus, queue = racks({"r0": [8, 8]}), [job("j", gpus=8, tier="reserved")]
    (first,) = decide(gpus, queue, attempts).reclaims
    again = decide(gpus, queue, attempts, reclaims=[standing(first.victim, "j", first.hold, in_s=120)])
    assert (again.reclaims, again.withdrawals, again.placements) == ((), (), ())


def test_a_job_over_its_quota_neither_runs_nor_reclaims_and_is_reported() -> None:
    attempts = [running("mine", of_host("r0h0"), tier="reserved", tenant="waiter"), running("v", of_host("r0h1"))]
    gpus = hold(racks({"r0": [8, 8, 8]}), [*of_host("r0h0"), *of_host("r0h1")])
    workload = Workload(NOW_MS, tuple(attempts), tenancy=Tenancy.of_ceilings({(TenantId("waiter"), "reserved"): 12}))
    decided = plan(gpus, [job("j", gpus=8, tier="reserved")], DEFAULT_POLICY, workload)
    assert (decided.placements, decided.reclaims) == ((), ())
    assert decided.waiting[0].why == (
        "no quota is left for 8 GPUs: its tenant holds 8 of the 12 GPUs that its quota allows in the tier reserved"
    )


def test_where_no_rack_is_known_a_preferred_one_hinders_no_reclaim() -> None:
    gang = job("gang", nodes=2, gpus=8, tier="reserved", preferred="rack")
    attempts = [running(name, of_host(name)) for name in ("a", "b")]
    decided = decide([*host("a", 8), *host("b", 8)], [gang], attempts)
    assert victims(decided) == ["a", "b"]


@pytest.mark.parametrize("tier", ["reserved", "on_demand"])
def test_where_a_rack_is_preferred_all_are_taken_what_make_one_sufficient(tier: str) -> None:
    """One of them alone would do across two racks, with a host that is idle."""
    names = {"stale": "r0h1", "fresh0": "r1h0", "fresh1": "r1h1"}
    attempts = [running(name, of_host(at), saved_minutes=30 if name == "stale" else 1) for name, at in names.items()]
    gpus = racks({"r0": [8, 8], "r1": [8, 8]})
    (_, reclaim) = decide(gpus, [job("j", nodes=2, gpus=8, tier=tier, preferred="rack")], attempts).reclaims
    assert sorted(reclaim.hold) == sorted([*of_host("r1h0"), *of_host("r1h1")])
    assert victims(decide(gpus, [job("j", nodes=2, gpus=8, tier=tier)], attempts)) in (["fresh0"], ["fresh1"])


def test_where_no_preferred_rack_can_be_had_none_is_taken_in_vain_for_one() -> None:
    firm = [running(f"firm{rack}", of_host(f"r{rack}h1"), tier="reserved") for rack in range(2)]
    fresh = [running(f"v{rack}", of_host(f"r{rack}h0"), saved_minutes=1 + rack) for rack in range(2)]
    gpus = racks({"r0": [8, 8], "r1": [8, 8], "r2": [8]})
    wide = job("j", nodes=2, gpus=8, tier="reserved", preferred="rack")
    assert victims(decide(gpus, [wide], [*firm, *fresh])) == ["v0"], "with the idle host of the third rack"


def test_where_all_what_give_way_are_too_few_the_job_is_shown_how_far_they_go() -> None:
    firm = replace(running("firm", of_host("r0h1")), tier="reserved")
    attempts = [running("v", of_host("r0h0")), firm]
    wish = replace(job("gang", nodes=2, gpus=8, tier="reserved"), required_level="rack")
    (told,) = decide(racks({"r0": [8, 8]}), [wish], attempts).waiting
    assert told.verdict.reasons[-1].token is WaitReason.RECLAIM_TOO_LITTLE
    assert (
        "reclaim cannot help: even with the GPUs of all reclaimable jobs, the largest cohort in one rack has only 1 of "
        "2 hosts with 8 GPUs free" in told.why
    )
    (alone,) = decide(racks({"r0": [8, 8]}), [wish], [replace(attempts[0], tier="reserved"), firm]).waiting
    assert "reclaim" not in alone.why, "there is no candidate"
    (never,) = decide(racks({"r0": [8]}), [wish], attempts[:1]).waiting
    assert "reclaim" not in never.why, "it would not fit into an idle fleet either"


def test_where_reclaim_would_help_but_for_planned_work_the_job_is_reported_so() -> None:
    attempts = [running("v", of_host("r0h0")), replace(running("firm", of_host("r0h1")), tier="reserved")]
    held = hold(racks({"r0": [8, 8, 8]}), [uuid for attempt in attempts for uuid in attempt.gpus])
    workload = Workload(
        NOW_MS, tuple(attempts), peak_gpus=GENEROUS, maintenance_starts={NodeId("r0h2"): NOW_MS + 120 * MINUTE_MS}
    )
    gang = job("gang", nodes=2, gpus=8, tier="reserved")
    (told,) = plan(held, [gang], DEFAULT_POLICY, workload).waiting
    assert "reclaim would help if it ended before hosts close for planned work" in told.why
    assert WaitReason.MAINTENANCE in {reason.token for reason in told.verdict.reasons}
    (reclaim,) = plan(held, [replace(gang, expected_s=3600.0)], DEFAULT_POLICY, workload).reclaims
    assert reclaim.victim == "v"


def test_how_far_reclaim_goes_is_reported_with_the_hosts_that_slices_leave_over() -> None:
    firm = replace(running("firm", [*of_host("r1h0"), *of_host("r1h1")]), tier="reserved")
    rule = PlacementRule(slices=(Slice("rack", 2),))
    gang = replace(job("gang", nodes=4, gpus=8, tier="reserved"), rule=rule)
    attempts = [running("v", of_host("r0h0")), firm]
    (told,) = decide(racks({"r0": [8, 8, 8], "r1": [8, 8, 8]}), [gang], attempts).waiting
    assert "only 2 of 4 hosts with 8 GPUs free, of 4 before they are rounded down to whole slices" in told.why
