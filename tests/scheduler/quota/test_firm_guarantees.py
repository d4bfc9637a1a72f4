"""A guarantee in a tier that no rule reclaims is never lent to jobs that cannot be taken back."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.recovery import SparePolicy
from muster.domain.states import Standing
from scheduler.model import ElasticGang, Plan, Question, RunningAttempt, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.quota.tenancy import Member, Quota, Tenancy
from simulator.planning.lending import fault_of_lent
from tests.scheduler.fleets import NOW_MS, host, job, of_host, racks, running

A, B, C, TOP = (TenantId(name) for name in ("a", "b", "c", "top"))
TENANTS = (A, B, C)
TIERS = ("reserved", "on_demand", "spot")
FLEET = racks({"r0": [8] * 4})
HALVES = Tenancy(quotas={(A, "reserved"): Quota(16), (B, "reserved"): Quota(16)})
WITHOUT_SPARES = DEFAULT_POLICY.recovery.model_copy(
    update={"spares": DEFAULT_POLICY.recovery.spares.model_copy(update={"confidence": None})}
)


def decided(
    queue: Sequence[WaitingJob],
    tenancy: Tenancy = HALVES,
    attempts: Sequence[RunningAttempt] = (),
    policy: Policy = DEFAULT_POLICY,
) -> Plan:
    held = {gpu for attempt in attempts for gpu in attempt.gpus}
    gpus = [replace(view, facts=replace(view.facts, is_assigned=view.uuid in held)) for view in FLEET]
    found = plan(gpus, queue, policy, Workload(NOW_MS, tuple(attempts), tenancy=tenancy))
    fault = fault_of_lent(
        Question(policy, gpus, list(queue), Workload(NOW_MS, tuple(attempts), tenancy=tenancy)), found
    )
    assert fault is None, fault
    return found


def placed(found: Plan) -> list[str]:
    return [placement.job_id for placement in found.placements]


def of(tenant: TenantId, name: str, *, tier: str = "reserved", nodes: int = 1) -> WaitingJob:
    return job(name, tenant=tenant, tier=tier, nodes=nodes, gpus=8)


def test_the_example_that_opens_the_module() -> None:
    found = decided([of(A, f"x{number}") for number in range(4)])
    assert placed(found) == ["x0", "x1"]
    assert {one.verdict.binding for one in found.waiting} == {WaitReason.FIRM_GUARANTEES}
    assert found.waiting[0].why.startswith("needs 8 GPUs, and 0 are not guaranteed to other tenants")
    there = [running(f"x{number}", of_host(f"r0h{number}"), tier="reserved", tenant="a") for number in range(2)]
    assert placed(decided([of(B, "mine", nodes=2)], attempts=there)) == ["mine"]


@pytest.mark.parametrize(
    ("tier", "cap", "num_placed"),
    [("reserved", 1.0, 2), ("on_demand", 1.0, 2), ("spot", 1.0, 4), ("spot", 0.0, 2)],
)
def test_only_a_tier_from_which_the_guarantee_is_reclaimed_borrows_it(tier: str, cap: float, num_placed: int) -> None:
    """Where no tenant may lose anything to reclaim, spot is not reclaimed either."""
    tenancy = Tenancy(quotas={(B, "reserved"): Quota(16)})
    policy = DEFAULT_POLICY.model_copy(
        update={"reclaim": DEFAULT_POLICY.reclaim.model_copy(update={"cap_fraction": cap})}
    )
    assert len(placed(decided([of(A, f"x{n}", tier=tier) for n in range(4)], tenancy, policy=policy))) == num_placed


def test_a_guarantee_in_a_lower_firm_tier_is_not_lent_to_a_higher_one() -> None:
    """On-demand jobs take nothing back from reserved ones."""
    tenancy = Tenancy(quotas={(B, "on_demand"): Quota(24)})
    assert placed(decided([of(A, "x0"), of(A, "x1")], tenancy)) == ["x0"]


def test_a_guarantee_that_is_taken_back_in_its_own_tier_keeps_nothing_from_others() -> None:
    tenancy = Tenancy(quotas={(B, "spot"): Quota(32)})
    assert len(placed(decided([of(A, f"x{number}", tier="spot") for number in range(4)], tenancy))) == 4


def test_a_tenant_uses_its_own_guarantee_whatever_the_fleet_has_lost() -> None:
    """24 + 24 of 32 are guaranteed: both start, first come; neither borrows."""
    tenancy = Tenancy(quotas={(A, "reserved"): Quota(24), (B, "reserved"): Quota(24)})
    queue = [of(A, "a0", nodes=3), of(B, "b0"), of(C, "c0", tier="on_demand")]
    assert placed(decided(queue, tenancy)) == ["a0", "b0"]


def test_a_department_keeps_what_its_teams_have_not_used() -> None:
    """A has used up the department's 16; B's own 8 are kept from A, and from others."""
    tree = {A: Member(TOP), B: Member(TOP)}
    tenancy = Tenancy(tree, {(TOP, "reserved"): Quota(16), (B, "reserved"): Quota(8)})
    queue = [of(A, f"a{number}") for number in range(4)]
    assert placed(decided(queue, tenancy)) == ["a0", "a1", "a2"]
    assert placed(decided([of(C, f"c{number}") for number in range(4)], tenancy)) == ["c0", "c1"]


def test_an_elastic_job_starts_with_what_is_not_guaranteed_and_grows_no_further() -> None:
    tenancy = Tenancy(quotas={(B, "reserved"): Quota(16)})
    elastic = replace(of(A, "wide", tier="on_demand", nodes=4), min_nodes=1, max_nodes=4)
    (placement,) = decided([elastic], tenancy).placements
    assert len(placement.parts) == 2
    gang = ElasticGang(placement.parts, 1, 4, 8)
    gpus = [gpu for _, part in placement.parts for gpu in part]
    there = replace(running("wide", gpus, tier="on_demand", tenant="a", minutes=10_000), elastic=gang)
    assert decided([], tenancy, [there]).growths == ()
    (grown,) = decided([], Tenancy(), [there]).growths
    assert len(grown.parts) == 4, "it would without the guarantee"


def test_small_jobs_do_not_use_up_for_ever_what_an_overtaken_gang_needs() -> None:
    """16 are guaranteed to B and 8 are free beyond: the gang of 16 waits until another 8 have ended."""
    tenancy = Tenancy(quotas={(B, "reserved"): Quota(16)})
    there = [running("busy", of_host("r0h0"), tier="on_demand", tenant="c", ends_minutes=60)]
    gang, small = of(A, "gang", tier="on_demand", nodes=2), of(C, "small", tier="on_demand")
    assert placed(decided([gang, small], tenancy, there)) == ["small"]
    passed = replace(gang, overtaken_gpu_s=1e9)
    assert placed(decided([passed, small], tenancy, there)) == []
    too_large = replace(passed, nodes=3)
    assert placed(decided([too_large, small], tenancy, there)) == ["small"], "it never could: it keeps nothing"


def test_gpus_on_which_nothing_new_may_run_do_not_keep_a_guarantee() -> None:
    tenancy = Tenancy(quotas={(B, "reserved"): Quota(8)})
    out = [replace(view, facts=replace(view.facts, standing=Standing.QUARANTINED)) for view in host("r0h0", 8)]
    gpus = [*out, *(view for view in FLEET if view.node_id != "r0h0")]
    queue = [of(A, f"x{number}") for number in range(4)]
    assert len(placed(plan(gpus, queue, DEFAULT_POLICY, Workload(NOW_MS, tenancy=tenancy)))) == 2
    there = running("old", of_host("r0h0"), tier="on_demand", tenant="c")
    workload = Workload(NOW_MS, (there,), tenancy=tenancy)
    assert len(placed(plan(gpus, queue, DEFAULT_POLICY, workload))) == 2, "nor does a job there use any of the others"


@st.composite
def tenancies(draw: st.DrawFn) -> Tenancy:
    """A tree whose firm guarantees the fleet of 32 can meet."""
    members = {tenant: Member(TOP) for tenant in draw(st.sets(st.sampled_from(TENANTS)))}
    number = st.integers(0, 5)
    keys = draw(st.sets(st.tuples(st.sampled_from((*TENANTS, TOP)), st.sampled_from(TIERS)), max_size=6))
    return Tenancy(members, {key: Quota(draw(number)) for key in sorted(keys)})


JOBS = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.sampled_from(("reserved", "on_demand")), st.integers(1, 8)), max_size=12
)


@given(tenancies(), JOBS)
def test_whatever_came_first_each_tenant_gets_what_it_is_guaranteed_at_once(
    tenancy: Tenancy, first: list[tuple[TenantId, str, int]]
) -> None:
    """By jobs of one GPU, since a guarantee is of GPUs and not of hosts."""
    queue = [job(f"f{n}", tenant=tenant, tier=tier, gpus=gpus) for n, (tenant, tier, gpus) in enumerate(first)]
    policy = DEFAULT_POLICY.model_copy(update={"recovery": WITHOUT_SPARES})
    jobs = {one.job_id: one for one in queue}
    there = [
        running(
            one.job_id,
            [gpu for _, part in one.parts for gpu in part],
            tier=jobs[one.job_id].tier,
            tenant=jobs[one.job_id].tenant_id,
        )
        for one in decided(queue, tenancy, policy=policy).placements
    ]
    asked, has = list[WaitingJob](), [(one.tenant_id, one.tier, len(one.gpus)) for one in there]
    for (tenant, tier), quota in sorted(tenancy.quotas.items(), key=lambda one: one[0][0] == TOP):
        if tier != "spot":  # what a team gets is its department's too
            used = sum(number for one, name, number in has if name == tier and tenant in tenancy.line(one))
            left = max(quota.guaranteed - used, 0)
            asked += [job(f"{tenant}-{tier}-{number}", tenant=tenant, tier=tier) for number in range(left)]
            has.append((tenant, tier, left))
    assert {JobId(name) for name in placed(decided(asked, tenancy, there, policy))} == {one.job_id for one in asked}


ONE_SPARE = WITHOUT_SPARES.model_copy(update={"spares": SparePolicy(confidence=0.9)})
ONE_OF_FOUR = 2e-4
"""Failures a GPU-hour by which one host of four is kept."""


def placed_with_a_spare(queue: Sequence[WaitingJob], tenancy: Tenancy, *, lent_to: RunningAttempt | None) -> Plan:
    """Return the plan with one spare, if no rule reclaims any job."""
    policy = DEFAULT_POLICY.model_copy(
        update={"recovery": ONE_SPARE, "reclaim": DEFAULT_POLICY.reclaim.model_copy(update={"cap_fraction": 0.0})}
    )
    attempts = () if lent_to is None else (lent_to,)
    busy = {gpu for attempt in attempts for gpu in attempt.gpus}
    gpus = [replace(view, facts=replace(view.facts, is_assigned=view.uuid in busy)) for view in FLEET]
    workload = Workload(NOW_MS, attempts, tenancy=tenancy, failures_per_gpu_hour=ONE_OF_FOUR)
    return plan(gpus, queue, policy, workload)


def test_a_spare_that_a_job_uses_counts_once() -> None:
    """Of 32 GPUs the spot job has the spare, 16 are guaranteed to B, and 8 are left to lend."""
    queue = [of(A, f"x{number}") for number in range(3)]
    tenancy = Tenancy(quotas={(B, "reserved"): Quota(16)})
    assert placed(placed_with_a_spare(queue, tenancy, lent_to=None)) == ["x0"]
    lent_to = running("cheap", of_host("r0h0"), tier="spot", tenant="c")
    assert placed(placed_with_a_spare(queue, tenancy, lent_to=lent_to)) == ["x0"]


def test_a_spare_on_which_an_interrupted_job_starts_counts_once() -> None:
    """It takes the spare for its guarantee; of the other 24 GPUs 8 are B's, and 16 are left to lend."""
    tenancy = Tenancy(quotas={(A, "reserved"): Quota(8), (B, "reserved"): Quota(8)})
    hurt = replace(of(A, "hurt"), interrupted_ms=NOW_MS, keep=((NodeId("r0h3"), tuple(map(GpuUuid, of_host("r0h3")))),))
    queue = [hurt, *(of(C, f"c{number}", tier="on_demand") for number in range(3))]
    assert placed(placed_with_a_spare(queue, tenancy, lent_to=None)) == ["hurt", "c0", "c1"]


def test_a_guarantee_of_which_nothing_is_unused_limits_no_job() -> None:
    """A uses its 16, and the fleet is full: the jobs wait for GPUs in use, and one has a place."""
    tenancy = Tenancy(quotas={(A, "reserved"): Quota(16)})
    there = [
        running(f"x{number}", of_host(f"r0h{number}"), tier="reserved", tenant="a", ends_minutes=60 + number)
        for number in range(4)
    ]
    found = decided([of(A, "own"), of(C, "other")], tenancy, there)
    assert WaitReason.FIRM_GUARANTEES not in {one.verdict.binding for one in found.waiting}
    assert len(found.holds) == 1
