"""Firm starts: a place that is free soon is kept against jobs of equal or lower right, and postponed with a reason."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from muster.domain.ids import AttemptId, GpuUuid, NodeId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.queue import CONSERVATIVE
from muster.domain.policy.recovery import RecoveryPolicy, SparePolicy
from muster.domain.states import Standing
from scheduler.forecast.end_times import CLEANING_MS
from scheduler.model import (
    FirmStart,
    GpuView,
    Plan,
    ResumeHold,
    RunningAttempt,
    StandingReclaim,
    Waiting,
    WaitingJob,
    Workload,
)
from scheduler.planner import plan
from scheduler.quota.tenancy import Quota, Tenancy
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, host, job, of_host, queueing, racks, running

HOUR_MS = 60 * MINUTE_MS
FLEET = racks({"r0": [0, 8]})
"""Host r0h0 has an attempt that ends within an hour, host r0h1 is idle."""


def ending(minutes: float | None, name: str = "a0", node: str = "r0h0", tier: str = "on_demand") -> RunningAttempt:
    return running(name, of_host(node), tier=tier, ends_minutes=minutes)


def gang(*, tier: str = "on_demand", tenant: str = "waiter") -> WaitingJob:
    return replace(job("gang", nodes=2, gpus=8, tier=tier, tenant=tenant, at=NOW_MS), expected_s=36_000.0)


def urgent(name: str = "urgent", *, minutes: float = 90, tier: str = "on_demand") -> WaitingJob:
    """A job of one host that is shorter, and has waited for longer, than the gang."""
    came = job(name, gpus=8, tier=tier, tenant="other", at=NOW_MS - 10 * HOUR_MS)
    return replace(came, expected_s=minutes * 60)


def decide(
    queue: Sequence[WaitingJob],
    attempts: Sequence[RunningAttempt],
    fleet: Sequence[GpuView] = FLEET,
    policy: Policy = DEFAULT_POLICY,
    tenancy: Tenancy | None = None,
) -> Plan:
    return plan(fleet, queue, policy, Workload(NOW_MS, tuple(attempts), tenancy=tenancy or Tenancy()))


def reported(decided: Plan, name: str = "gang") -> Waiting:
    return next(one for one in decided.waiting if one.job_id == name)


def as_reported(one: WaitingJob, decided: Plan) -> WaitingJob:
    """The job as the next cycle reads it."""
    entry = reported(decided, one.job_id)
    return replace(one, firm_start=entry.firm_start, postponed=entry.postponed)


def firm_gang(attempts: Sequence[RunningAttempt] = (ending(60),), **fields: str) -> WaitingJob:
    wanted = gang(**fields)
    found = as_reported(wanted, decide([wanted], attempts))
    assert found.firm_start is not None
    return found


def placed(decided: Plan) -> list[str]:
    return [item.job_id for item in decided.placements]


def test_a_start_is_firm_where_every_end_is_certain_and_soon() -> None:
    found = firm_gang().firm_start
    assert found is not None
    assert found.latest_ms == NOW_MS + HOUR_MS + CLEANING_MS
    assert set(found.gpus) == {*of_host("r0h0"), *of_host("r0h1")}


def _not_firm() -> Iterator[tuple[str, list[RunningAttempt], Policy]]:
    yield "late", [ending(121)], DEFAULT_POLICY
    yield "predicted", [replace(ending(None), predicted_ms=NOW_MS + MINUTE_MS)], DEFAULT_POLICY
    yield "switched off", [ending(60)], queueing(firm_within_s=0)
    yield "conservative", [ending(60)], queueing(backfill=CONSERVATIVE)


@pytest.mark.parametrize(("attempts", "policy"), [pytest.param(*case, id=name) for name, *case in _not_firm()])
def test_another_start_is_reported_as_expected_alone(attempts: list[RunningAttempt], policy: Policy) -> None:
    entry = reported(decide([gang()], attempts, policy=policy))
    assert entry.firm_start is None
    assert "that start is expected and not firm" in entry.why


def test_a_more_urgent_job_that_comes_later_runs_there_only_if_it_ends_before() -> None:
    for minutes, starts in ((60, ["urgent"]), (61, [])):
        assert placed(decide([gang(), urgent(minutes=minutes)], [ending(60)])) == ["urgent"], "it is more urgent"
        decided = decide([firm_gang(), urgent(minutes=minutes)], [ending(60)])
        assert placed(decided) == starts
        assert reported(decided).firm_start == firm_gang().firm_start


def test_a_run_time_that_is_only_predicted_is_not_relied_on() -> None:
    unsure = replace(urgent(), expected_s=None, predicted_s=600.0)
    assert placed(decide([firm_gang(), unsure], [ending(60)])) == []


def test_it_starts_on_its_place_once_that_is_free_whoever_is_more_urgent() -> None:
    idle = racks({"r0": [8, 8]})
    assert placed(decide([firm_gang(), urgent()], [], idle)) == ["gang"]


def test_a_place_that_is_idle_already_makes_no_start_firm() -> None:
    fleet = racks({"r0": [8, 8], "r1": [8]})
    kept = FirmStart(NOW_MS + MINUTE_MS, tuple(map(GpuUuid, of_host("r0h0"))), is_guaranteed=False)
    elsewhere = replace(urgent("elsewhere"), queued_ms=NOW_MS, firm_start=kept)
    tried_first = replace(gang(), queued_ms=NOW_MS - 100 * HOUR_MS, required_level="rack")
    decided = decide([tried_first, elsewhere], [], fleet)
    assert placed(decided) == ["elsewhere"]
    assert [(one.num_free, one.latest_ms) for one in decided.holds] == [(16, None)]
    assert reported(decided).firm_start is None


def decide_with_own_gpus(one: WaitingJob, attempt: RunningAttempt) -> Plan:
    """The plan where host r0h1 is kept for the job, which cannot continue there."""
    own = ResumeHold(one.job_id, tuple(map(GpuUuid, of_host("r0h1"))), one.tenant_id, one.tier)
    return plan(FLEET, [one], DEFAULT_POLICY, Workload(NOW_MS, (attempt,), holds=(own,)))


def test_gpus_that_the_job_itself_had_kept_do_not_postpone_it() -> None:
    wanted = firm_gang()
    decided = decide_with_own_gpus(wanted, ending(60))
    assert [one.beneficiary for one in decided.lapses] == ["gang"]
    entry = reported(decided)
    assert (entry.firm_start, entry.postponed) == (wanted.firm_start, None)


def test_a_later_place_in_the_cycle_that_releases_its_own_gpus_does_not_replace_the_firm_start() -> None:
    wanted = firm_gang()
    decided = decide_with_own_gpus(wanted, ending(90))
    assert reported(decided).firm_start == wanted.firm_start
    entry = reported(decide([as_reported(wanted, decided)], [ending(90)]))
    assert "in use for longer than the jobs there had stated" in entry.why


def test_two_firm_places_both_stand_whichever_is_tried_first() -> None:
    fleet = racks({"r0": [0, 8], "r1": [0, 8]})
    attempts = [ending(60), ending(30, "a1", "r1h0")]
    policy = queueing(holds_per_cohort=2)
    first = replace(gang(), required_level="rack")
    second = replace(first, job_id=job("second").job_id, queued_ms=NOW_MS + 1)
    decided = decide([first, second], attempts, fleet, policy)
    first, second = as_reported(first, decided), as_reported(second, decided)
    assert first.firm_start is not None
    assert second.firm_start is not None
    assert not set(first.firm_start.gpus) & set(second.firm_start.gpus)
    again = decide([second, first, urgent()], attempts, fleet, policy)
    assert placed(again) == []
    assert [reported(again, name).firm_start for name in ("gang", "second")] == [first.firm_start, second.firm_start]


def test_a_job_of_a_higher_tier_goes_before_it_and_is_named_as_the_reason() -> None:
    wanted = firm_gang()
    decided = decide([wanted, urgent(tier="reserved")], [ending(60)])
    assert placed(decided) == ["urgent"]
    entry = reported(decided)
    assert entry.postponed is not None
    assert wanted.firm_start is not None
    assert entry.postponed.latest_ms == wanted.firm_start.latest_ms
    assert "a job that goes before it, of the tier reserved, has started there" in entry.why
    assert "its firm start by " in entry.why


def test_a_job_within_its_guarantee_goes_before_one_that_is_not() -> None:
    tenancy = Tenancy(quotas={(TenantId("other"), "spot"): Quota(guaranteed=8)})
    decided = decide([firm_gang(tier="spot"), urgent(tier="spot")], [ending(60)], tenancy=tenancy)
    assert placed(decided) == ["urgent"]
    assert "a job that goes before it, of the tier spot, has started there" in reported(decided).why


@pytest.mark.parametrize(
    ("fleet", "attempts", "why"),
    [
        (hold(host("r0h0", 8, path=("r0",)), of_host("r0h0")), [ending(60)], "8 of the 16 GPUs"),
        (FLEET, [ending(130)], "in use for longer than the jobs there had stated"),
    ],
    ids=["a host has failed", "a job runs on"],
)
def test_a_lost_place_postpones_the_start_with_a_reason(
    fleet: list[GpuView], attempts: list[RunningAttempt], why: str
) -> None:
    entry = reported(decide([firm_gang()], attempts, fleet))
    assert entry.firm_start is None
    assert why in entry.why


def test_another_place_that_is_free_in_time_keeps_the_start_firm() -> None:
    fleet = [*racks({"r0": [0]}), *host("r0h2", 8, path=("r0",))]
    entry = reported(decide([firm_gang()], [ending(60)], fleet))
    assert entry.postponed is None
    assert entry.firm_start is not None
    assert GpuUuid("r0h2-0") in entry.firm_start.gpus


def test_a_postponed_start_may_become_firm_again_and_the_reason_stays() -> None:
    wanted = as_reported(firm_gang(), decide([firm_gang()], [ending(130)]))
    entry = reported(decide([wanted], [ending(50)]))
    assert entry.firm_start is not None
    assert entry.firm_start.latest_ms == NOW_MS + 50 * MINUTE_MS + CLEANING_MS
    assert "was postponed: GPUs that were held for it are in use for longer" in entry.why


def test_planned_work_that_would_meet_it_postpones_it() -> None:
    workload = Workload(NOW_MS, (ending(60),), maintenance_starts={NodeId("r0h1"): NOW_MS + 2 * HOUR_MS})
    entry = reported(plan(FLEET, [firm_gang()], DEFAULT_POLICY, workload))
    assert "closes for planned work before it would end" in entry.why


def test_a_start_that_counts_on_the_end_of_planned_work_is_not_firm() -> None:
    node = NodeId("r0h1")
    starts, ends = {node: NOW_MS + MINUTE_MS}, {node: NOW_MS + 10 * MINUTE_MS}
    workload = Workload(NOW_MS, (ending(5),), maintenance_starts=starts, maintenance_ends=ends)
    entry = reported(plan(FLEET, [gang()], DEFAULT_POLICY, workload))
    assert "once planned work on 1 host is over" in entry.why
    assert entry.firm_start is None


def test_a_quarantined_gpu_postpones_it() -> None:
    sick = [replace(one, facts=replace(one.facts, standing=Standing.QUARANTINED)) for one in FLEET[8:9]]
    entry = reported(decide([firm_gang()], [ending(60)], [*FLEET[:8], *sick, *FLEET[9:]]))
    assert "1 of the 16 GPUs that were held for it may not be used any more" in entry.why


@pytest.mark.parametrize("tier", ["reserved", "on_demand"])
@pytest.mark.parametrize("own", [0, 16])
def test_a_start_that_guarantees_of_others_may_refuse_is_not_firm(tier: str, own: int) -> None:
    # Until then others may borrow the rest, and other jobs of its tenant may use the tenant's guarantee.
    fleet = [*FLEET, *racks({"r1": [4, 4, 4, 4]})]
    tenancy = Tenancy(quotas={(TenantId("other"), tier): Quota(8), (TenantId("waiter"), tier): Quota(own)})
    entry = reported(decide([gang(tier=tier)], [ending(60)], fleet, tenancy=tenancy))
    assert entry.firm_start is None
    assert "that start is expected and not firm" in entry.why


def test_a_tenants_own_guarantee_does_not_keep_its_start_from_being_firm() -> None:
    tenancy = Tenancy(quotas={(TenantId("waiter"), "on_demand"): Quota(8)})
    fleet = [*FLEET, *racks({"r1": [4, 4, 4, 4]})]
    assert reported(decide([gang()], [ending(60)], fleet, tenancy=tenancy)).firm_start is not None


def test_a_guarantee_that_another_tenant_gets_later_postpones_it() -> None:
    wanted = firm_gang()
    tenancy = Tenancy(quotas={(TenantId("other"), "on_demand"): Quota(8)})
    entry = reported(decide([wanted], [ending(60)], tenancy=tenancy))
    assert entry.firm_start is None
    assert entry.postponed is not None
    assert wanted.firm_start is not None
    assert entry.postponed.latest_ms == wanted.firm_start.latest_ms
    assert "guarantees of other tenants may keep it pending" in entry.why


def at_minute(minute: float, one: WaitingJob, fleet: Sequence[GpuView], *, cleaned: bool) -> Waiting:
    """The report at this minute, once the attempt on host r0h0 has ended."""
    now_ms = NOW_MS + int(minute * MINUTE_MS)
    cleaning = tuple(map(GpuUuid, of_host("r0h0"))) if cleaned else ()
    return reported(plan(fleet, [one], DEFAULT_POLICY, Workload(now_ms, cleaning=cleaning)))


def test_gpus_that_are_being_cleaned_postpone_it_only_after_its_latest_start() -> None:
    wanted = firm_gang()
    for minute in (10, 60, 60.9, 61):
        entry = at_minute(minute, wanted, FLEET, cleaned=True)
        assert (entry.firm_start, entry.postponed) == (wanted.firm_start, None)
    assert "GPUs that were held for it are still being cleaned" in at_minute(62, wanted, FLEET, cleaned=True).why


def test_a_start_that_its_quota_keeps_from_free_gpus_does_not_await_other_jobs() -> None:
    wanted, now_ms = firm_gang(), NOW_MS + 62 * MINUTE_MS
    tenancy = Tenancy(quotas={(TenantId("waiter"), "on_demand"): Quota(0, None, 8)})
    idle = racks({"r0": [8, 8]})
    entry = reported(plan(idle, [wanted], DEFAULT_POLICY, Workload(now_ms, tenancy=tenancy)))
    assert "a limit, or the order of the queue, kept it from starting there by then" in entry.why


def waits_for_a_replacement(latest_ms: int) -> Waiting:
    """A gang of a rack lost a host; its good one is kept, and none of the rack can replace the other yet."""
    own, lost_gpus = (tuple(map(GpuUuid, of_host(name))) for name in ("r0h0", "r0h1"))
    lost = replace(
        job("gang", nodes=2, gpus=8, required="rack", keep=((NodeId("r0h0"), own), (NodeId("r0h1"), lost_gpus))),
        interrupted_ms=NOW_MS,
        expected_s=600.0,
        firm_start=FirmStart(latest_ms, own),
    )
    fleet = [
        replace(view, facts=replace(view.facts, standing=Standing.QUARANTINED)) if view.uuid in lost_gpus else view
        for view in racks({"r0": [8, 8, 0]})
    ]
    workload = Workload(NOW_MS, (ending(600, node="r0h2"),), holds=(ResumeHold(lost.job_id, own),))
    decided = plan(fleet, [lost], DEFAULT_POLICY, workload)
    assert [reason.token for reason in reported(decided).verdict.reasons][-1] is WaitReason.REPLACEMENT
    return reported(decided)


def test_a_firm_start_that_passes_while_a_replacement_is_awaited_is_postponed() -> None:
    stands = waits_for_a_replacement(NOW_MS)
    assert (stands.firm_start is None, stands.postponed) == (False, None)
    passed = waits_for_a_replacement(NOW_MS - 1)
    assert passed.firm_start is None
    assert "was postponed: it waits for hosts in place of the ones that it lost" in passed.why


def test_gpus_that_a_job_of_higher_right_holds_postpone_it() -> None:
    own = tuple(map(GpuUuid, of_host("r0h1")))
    keeps = ((NodeId("r0h1"), own),)
    better = replace(job("better", nodes=2, gpus=8, tier="reserved", keep=keeps), expected_s=3_600.0)
    workload = Workload(NOW_MS, (ending(60),), holds=(ResumeHold(better.job_id, own),))
    entry = reported(plan(FLEET, [firm_gang(), better], DEFAULT_POLICY, workload))
    assert "was postponed: a job that goes before it has got GPUs that were held for it" in entry.why


def test_a_quota_that_its_tenant_still_uses_at_its_start_postpones_it() -> None:
    busy = running("busy", of_host("r1h0"), tenant="waiter", tier="on_demand", ends_minutes=300)
    tenancy = Tenancy(quotas={(TenantId("waiter"), "on_demand"): Quota(ceiling=16)})
    fleet = [*FLEET, *racks({"r1": [0]})]
    entry = reported(decide([firm_gang()], [ending(60), busy], fleet, tenancy=tenancy))
    assert "was postponed: its tenant's quota, or one above it, is in use for longer" in entry.why
    ends_before = replace(busy, ends_ms=NOW_MS + 30 * MINUTE_MS)
    assert reported(decide([firm_gang()], [ending(60), ends_before], fleet, tenancy=tenancy)).postponed is None


def test_gpus_that_are_kept_as_spares_postpone_it() -> None:
    policy = Policy(recovery=RecoveryPolicy(spares=SparePolicy(confidence=0.99)))
    workload = Workload(NOW_MS, (ending(60),), failures_per_gpu_hour=0.0002)
    entry = reported(plan(FLEET, [firm_gang()], policy, workload))
    assert "was postponed: GPUs that were held for it are kept as spares, for gangs that lose hosts" in entry.why


def test_a_reclaim_for_it_postpones_it_only_once_its_latest_start_has_passed() -> None:
    wanted = firm_gang()
    assert wanted.firm_start is not None
    reclaim = StandingReclaim(AttemptId("a0"), wanted.job_id, NOW_MS - MINUTE_MS, wanted.firm_start.gpus)
    for now_ms in (NOW_MS, wanted.firm_start.latest_ms):
        entry = reported(plan(FLEET, [wanted], DEFAULT_POLICY, Workload(now_ms, (ending(60),), reclaims=(reclaim,))))
        assert (entry.firm_start, entry.postponed) == (wanted.firm_start, None)
    late = Workload(wanted.firm_start.latest_ms + 1, (ending(60),), reclaims=(reclaim,))
    entry = reported(plan(FLEET, [wanted], DEFAULT_POLICY, late))
    assert "was postponed: GPUs that are reclaimed for it are in use for longer" in entry.why
