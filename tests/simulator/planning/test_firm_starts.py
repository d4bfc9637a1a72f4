"""A firm start moves only for a reason that is true in the played world: each reason where it is so, and where not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from muster.domain.ids import GpuUuid, NodeId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.queue import CONSERVATIVE
from muster.domain.policy.recovery import RecoveryPolicy, SparePolicy
from muster.domain.states import Standing
from scheduler.model import FirmStart, Placement, Plan, Postponed, Question, ResumeHold, Verdict, Waiting, Workload
from scheduler.planner import plan
from scheduler.quota.tenancy import Quota, Tenancy
from simulator.planning.firm_starts import fault_of_firm_starts
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, job, of_host, queueing, racks, running

LATEST_MS = NOW_MS + 60 * MINUTE_MS
PLACE = tuple(map(GpuUuid, of_host("r0h0")))
GANG = replace(job("gang", gpus=8), expected_s=600.0, firm_start=FirmStart(LATEST_MS, PLACE))
URGENT = job("urgent", gpus=8, tier="reserved")
FLEET = racks({"r0": [0]})
ATTEMPT = running("a0", PLACE, ends_minutes=50)
WORLD = Question(DEFAULT_POLICY, FLEET, [GANG, URGENT], Workload(NOW_MS, (ATTEMPT,)))


def in_workload(**fields: object) -> Question:
    return replace(WORLD, workload=replace(WORLD.workload, **fields))  # type: ignore[arg-type]


def postponing(why: str, *placements: Placement) -> Plan:
    verdict = Verdict("waits", next(iter(WaitReason)), ())
    return Plan(waiting=(Waiting(GANG.job_id, verdict, postponed=Postponed(LATEST_MS, why)),), placements=placements)


PLACED = Placement(URGENT.job_id, 1, ((NodeId("r0h0"), PLACE),))
LOST = [
    replace(one, facts=replace(one.facts, standing=Standing.QUARANTINED)) if one.uuid in PLACE else one for one in FLEET
]
KEEPS_SPARES = Policy(recovery=RecoveryPolicy(spares=SparePolicy(confidence=0.99)))
TRUE = {
    "the policy makes no start firm any more": (replace(WORLD, policy=queueing(backfill=CONSERVATIVE)), ()),
    "guarantees of other tenants may keep it pending when its place is free": (
        in_workload(tenancy=Tenancy(quotas={(TenantId("other"), "reserved"): Quota(8)})),
        (),
    ),
    "8 of the 8 GPUs that were held for it may not be used any more": (replace(WORLD, gpus=LOST), ()),
    "a host that was held for it closes for planned work before it would end": (
        in_workload(maintenance_starts={NodeId("r0h0"): LATEST_MS}),
        (),
    ),
    "a job that goes before it has got GPUs that were held for it": (
        in_workload(holds=(ResumeHold(URGENT.job_id, PLACE),)),
        (),
    ),
    "a job that goes before it, of the tier reserved, has started there": (WORLD, (PLACED,)),
    "GPUs that were held for it are in use for longer than the jobs there had stated": (
        in_workload(running=(replace(ATTEMPT, ends_ms=LATEST_MS + 1),)),
        (),
    ),
    "GPUs that were held for it are still being cleaned": (in_workload(now_ms=LATEST_MS + 1, running=()), ()),
    "its tenant's quota, or one above it, is in use for longer": (
        in_workload(tenancy=Tenancy(quotas={(GANG.tenant_id, "on_demand"): Quota(ceiling=8)})),
        (),
    ),
    "a limit, or the order of the queue, kept it from starting there by then": (in_workload(now_ms=LATEST_MS + 1), ()),
    "it waits for hosts in place of the ones that it lost": (in_workload(now_ms=LATEST_MS + 1), ()),
    "GPUs that are reclaimed for it are in use for longer": (in_workload(now_ms=LATEST_MS + 1), ()),
    "GPUs that were held for it are kept as spares, for gangs that lose hosts": (
        replace(WORLD, policy=KEEPS_SPARES, gpus=racks({"r0": [8]})),
        (),
    ),
}


@pytest.mark.parametrize("why", TRUE)
def test_a_reason_holds_where_it_is_true_and_nowhere_else(why: str) -> None:
    question, placements = TRUE[why]
    assert fault_of_firm_starts(question, postponing(why, *placements)) is None
    assert fault_of_firm_starts(WORLD, postponing(why)) == (
        f"gang was to start by {LATEST_MS}, and it is not true that {why}"
    )


def test_a_job_of_lower_right_is_no_reason() -> None:
    lower = replace(WORLD, queue=[GANG, replace(URGENT, tier="spot")])
    why = "a job that goes before it, of the tier spot, has started there"
    assert "it is not true" in (fault_of_firm_starts(lower, postponing(why, PLACED)) or "")


def test_a_reason_that_no_check_knows_is_a_fault() -> None:
    assert "no check knows the reason 'so it is'" in (fault_of_firm_starts(WORLD, postponing("so it is")) or "")


def test_a_start_that_has_passed_is_not_reported() -> None:
    late = in_workload(now_ms=LATEST_MS + 1)
    entry = replace(postponing("").waiting[0], postponed=None, firm_start=GANG.firm_start)
    assert "waits at" in (fault_of_firm_starts(late, Plan(waiting=(entry,))) or "")


def _overrun() -> Question:
    return in_workload(running=(replace(ATTEMPT, ends_ms=LATEST_MS + 120 * MINUTE_MS),))


def _loss() -> Question:
    return replace(WORLD, gpus=LOST)


@pytest.mark.parametrize("happens", [_overrun, _loss, lambda: in_workload(now_ms=LATEST_MS + 1)])
def test_the_planners_own_reasons_are_true(happens: Callable[[], Question]) -> None:
    question = replace(happens(), queue=[GANG])
    gpus = hold(question.gpus, PLACE)
    decided = plan(gpus, question.queue, question.policy, question.workload)
    assert decided.waiting[0].postponed is not None
    assert fault_of_firm_starts(replace(question, gpus=gpus), decided) is None
