"""Fair shares: guaranteed first, then by weight down the tree; asked for at each turn."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import JobId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import FleetState
from scheduler.model import WaitingJob, Workload
from scheduler.planner import plan
from scheduler.queue.fair_share import FairShares, by_turns, entitlements, water_filled
from scheduler.queue.order import in_order
from scheduler.quota.tenancy import Holdings, Member, Quota, Tenancy
from tests.scaled import examples
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, host, job
from tests.scheduler.test_plan_properties import World, worlds

A, B, C, TOP, OTHER = (TenantId(name) for name in ("a", "b", "c", "top", "other"))
NUMBERS = st.floats(0, 1000)


@given(st.floats(0, 1000), st.lists(st.tuples(st.floats(0.01, 100), NUMBERS), min_size=1, max_size=8))
def test_water_fills_the_pool_or_every_cap_and_none_has_more_for_its_weight_than_what_wants_more(
    pool: float, each: list[tuple[float, float]]
) -> None:
    weights, caps = [weight for weight, _ in each], [cap for _, cap in each]
    shares = water_filled(pool, weights, caps)
    assert sum(shares) == pytest.approx(min(pool, sum(caps)))
    for share, weight, cap in zip(shares, weights, caps, strict=True):
        assert -1e-9 <= share <= cap + 1e-9
        if share < cap - 1e-6:
            others = [other / heavy for other, heavy in zip(shares, weights, strict=True)]
            assert share / weight >= max(others) - 1e-6, "a tenant in need has no less for its weight"


def test_shares_go_by_weight_and_what_one_leaves_goes_by_weight_to_the_others() -> None:
    tenancy = Tenancy({A: Member(weight=2)})
    assert entitlements(tenancy, "spot", 128, {A: 999, B: 999, C: 999}) == {A: 64, B: 32, C: 32}
    assert entitlements(tenancy, "spot", 128, {A: 999, B: 999, C: 2}) == {A: 84, B: 42, C: 2}


def test_what_is_guaranteed_comes_first_and_a_limit_ends_a_share() -> None:
    quotas = {(A, "spot"): Quota(guaranteed=60), (B, "spot"): Quota(ceiling=10)}
    assert entitlements(Tenancy(quotas=quotas), "spot", 100, {A: 99, B: 99, C: 99}) == {A: 75, B: 10, C: 15}
    assert entitlements(Tenancy(quotas=quotas), "spot", 30, {A: 99, B: 99, C: 99}) == {A: 30, B: 0, C: 0}
    assert entitlements(Tenancy(quotas=quotas), "on_demand", 90, {A: 99, B: 99, C: 99}) == {A: 30, B: 30, C: 30}


def test_a_department_shares_as_one_and_its_teams_share_what_it_has() -> None:
    tenancy = Tenancy({A: Member(TOP, 3), B: Member(TOP)})
    shares = entitlements(tenancy, "spot", 80, {A: 99, B: 99, OTHER: 99})
    assert shares == {TOP: 40, OTHER: 40, A: 30, B: 10}
    with_own_jobs = entitlements(tenancy, "spot", 100, {A: 99, B: 99, TOP: 99, OTHER: 99})
    assert (with_own_jobs[A], with_own_jobs[B]) == (30, 10), "its own jobs have what a team of weight 1 would"


def test_a_department_is_guaranteed_what_its_teams_are() -> None:
    quotas = {(A, "spot"): Quota(guaranteed=20), (B, "spot"): Quota(guaranteed=20), (TOP, "spot"): Quota(guaranteed=30)}
    tenancy = Tenancy({A: Member(TOP), B: Member(TOP)}, quotas)
    assert tenancy.guarantees("spot") == {A: 20, B: 20, TOP: 40}
    assert entitlements(tenancy, "spot", 44, {A: 99, OTHER: 99})[TOP] == 42


def test_what_used_more_of_late_has_less_until_it_is_forgotten() -> None:
    heavy = Tenancy(used={(A, "spot"): 90.0, (B, "spot"): 30.0})
    shares = entitlements(heavy, "spot", 90, {A: 999, B: 999})
    assert shares == pytest.approx({A: 30, B: 60}), "2^-(0.75 ÷ 0.5) to 2^-(0.25 ÷ 0.5) is 1 to 2"
    assert entitlements(heavy, "reserved", 90, {A: 999, B: 999}) == {A: 45, B: 45}


def of(tenant: TenantId, name: str, minutes: int) -> WaitingJob:
    return replace(job(name, nodes=1, gpus=8), tenant_id=tenant, queued_ms=NOW_MS - minutes * MINUTE_MS)


def started(queue: list[WaitingJob], num_hosts: int, tenancy: Tenancy) -> list[str]:
    gpus = [gpu for number in range(num_hosts) for gpu in host(f"h{number}", 8)]
    return [item.job_id for item in plan(gpus, queue, DEFAULT_POLICY, Workload(NOW_MS, tenancy=tenancy)).placements]


def test_one_tenants_long_queue_does_not_keep_another_out() -> None:
    queue = [*(of(A, f"a{number}", 90 - number) for number in range(8)), of(B, "b0", 5), of(B, "b1", 4)]
    assert started(queue, 4, Tenancy()) == ["a0", "a1", "b0", "b1"]
    assert started(queue[:8], 4, Tenancy()) == ["a0", "a1", "a2", "a3"], "alone it has all there is"


def test_what_is_guaranteed_goes_before_a_pending_job_longer_and_no_further_than_it_reaches() -> None:
    queue = [of(A, "a0", 90), of(A, "a1", 89), of(B, "b0", 2), of(B, "b1", 1)]
    assert started(queue, 1, Tenancy()) == ["a0"]
    assert started(queue, 1, Tenancy(quotas={(B, "on_demand"): Quota(guaranteed=8)})) == ["b0"]
    assert started(queue, 2, Tenancy(quotas={(B, "on_demand"): Quota(guaranteed=8)})) == ["b0", "a0"]
    assert started(queue, 2, Tenancy(quotas={(B, "on_demand"): Quota(guaranteed=7)}))[0] == "a0", (
        "not with a whole gang"
    )


def test_a_gang_goes_past_its_share_by_less_than_one_gang() -> None:
    queue = [of(A, "a0", 90), of(A, "a1", 89), of(A, "a2", 88), of(B, "b0", 2), of(B, "b1", 1)]
    assert started(queue, 3, Tenancy()) == ["a0", "a1", "b0"], "12 of 24 GPUs each: the second gang goes past it"


def test_what_is_over_its_share_is_reported_and_by_how_much() -> None:
    queue = [*(of(A, f"a{number}", 90 - number) for number in range(3)), of(B, "b0", 1)]
    gpus = [gpu for number in range(2) for gpu in host(f"h{number}", 8)]
    decided = plan(gpus, queue, DEFAULT_POLICY, Workload(NOW_MS))
    told = {item.job_id: item.verdict for item in decided.waiting}
    assert (
        "its tenant has its fair share of the tier, so jobs of tenants with less go before it" in told[JobId("a2")].why
    )
    first = told[JobId("a2")].reasons[0]
    assert (first.token, first.num_gpus) == (WaitReason.FAIR_SHARE, 0)


def test_a_limit_above_binds_all_below_and_states_whose_it_is() -> None:
    tenancy = Tenancy(
        {A: Member(TOP), B: Member(TOP)},
        {(TOP, "on_demand"): Quota(ceiling=16), (B, "on_demand"): Quota(guaranteed=0, borrowable=8)},
    )
    queue = [of(A, "a0", 9), of(A, "a1", 8), of(A, "a2", 7), of(B, "b0", 6), of(B, "b1", 5)]
    gpus = [gpu for number in range(8) for gpu in host(f"h{number}", 8)]
    decided = plan(gpus, queue, DEFAULT_POLICY, Workload(NOW_MS, tenancy=tenancy))
    assert sum(len(parts) for item in decided.placements for _, parts in item.parts) == 16
    told = {item.job_id: item.verdict for item in decided.waiting}
    assert told[JobId("a2")].binding is WaitReason.QUOTA_ABOVE
    assert "the department of its tenant holds, with all its teams, 16 of the 16 GPUs" in told[JobId("a2")].why
    alone = plan(gpus, queue[3:], DEFAULT_POLICY, Workload(NOW_MS, tenancy=tenancy))
    (borrowed,) = alone.waiting
    assert borrowed.verdict.binding is WaitReason.BORROWING
    assert "holds 8 of the 8 GPUs that its guarantee and what it may borrow allow" in borrowed.why


def test_one_heavy_user_among_many_tenants_leaves_shares_for_all() -> None:
    many = [TenantId(f"t{number:04}") for number in range(1_500)]
    tenancy = Tenancy(used={(many[0], "spot"): 1e6})
    shares = entitlements(tenancy, "spot", 1_000, dict.fromkeys(many, 8.0))
    assert sum(shares.values()) == pytest.approx(1_000)
    assert min(shares.values()) == shares[many[0]] < 1e-9
    plenty = entitlements(tenancy, "spot", 100_000, dict.fromkeys(many, 8.0))
    assert plenty == dict.fromkeys(many, 8.0)


@settings(max_examples=examples(150))
@given(worlds(), st.randoms(use_true_random=False))
def test_a_pending_job_stands_in_the_plan_as_its_turns_put_the_queue_in_order(world: World, rng: Random) -> None:
    """So a view of the queue needs no more of a plan than each job's turn."""
    queue = [replace(one, tenant_id=rng.choice((A, B, TenantId("t")))) for one in world.queue]
    decided = replace(world, queue=queue).plan()
    turns = {one.job_id: one.turn for one in decided.waiting}
    ordered = in_order(queue, DEFAULT_POLICY, world.workload.now_ms, len(world.gpus))
    shown = [one.job_id for one in by_turns(ordered, turns, DEFAULT_POLICY) if one.job_id in turns]
    assert shown == [one.job_id for one in decided.waiting]


def test_a_tenant_alone_in_a_tier_has_its_guarantee_there() -> None:
    """Its jobs within it go before its larger ones, though it shares with no other tenant."""
    queue = [of(A, "large", 90), of(A, "small", 1)]
    queue[0] = replace(queue[0], nodes=2)
    assert started(queue, 1, Tenancy(quotas={(A, "on_demand"): Quota(guaranteed=8)})) == ["small"]
    state = FleetState([view for number in range(3) for view in host(f"h{number}", 8)], DEFAULT_POLICY)
    holdings = Holdings(Tenancy(quotas={(A, "on_demand"): Quota(guaranteed=8)}))
    shares = FairShares(state, DEFAULT_POLICY, (), queue, holdings)
    assert [shares.is_guaranteed(one) for one in queue] == [False, True]
