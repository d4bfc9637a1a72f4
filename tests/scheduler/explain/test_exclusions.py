"""Why a job waits, as counts by filter that add up to the fleet, and the one filter that binds."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from muster.domain.ids import NodeId, TenantId
from muster.domain.job.wait_reasons import WAIT_REASON_TEXTS, WaitReason
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.tiers import ReclaimPolicy
from muster.domain.states import Standing
from scheduler.explain.exclusions import Funnel, funnel
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, Reason, Verdict, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.quota.tenancy import Tenancy
from scheduler.solve.placement_rule import PlacementRule, Slice
from scheduler.solve.solver import most_nodes, request_of
from tests.scheduler.fleets import FACTS, FIT, NOW_MS, hold, host, job, of_host, racks, running

QUARANTINED = replace(FIT, standing=Standing.QUARANTINED)


def verdict(
    gpus: list[GpuView], wanted: WaitingJob, workload: Workload | None = None, policy: Policy | None = None
) -> Verdict:
    found = plan(gpus, [wanted], policy or DEFAULT_POLICY, workload or Workload(NOW_MS))
    (waiting,) = found.waiting
    return waiting.verdict


def counts(found: Verdict) -> Mapping[WaitReason, tuple[int | None, int | None]]:
    return {reason.token: (reason.num_gpus, reason.num_hosts) for reason in found.reasons}


def test_each_token_states_something() -> None:
    assert set(WAIT_REASON_TEXTS) == set(WaitReason)


def test_weak_health_binds_where_all_else_would_do() -> None:
    found = verdict([*host("a", 8), *host("b", 8, facts=QUARANTINED)], job("j", nodes=2, gpus=8))
    assert found.binding is WaitReason.STANDING
    assert counts(found) == {WaitReason.STANDING: (8, 1)}


def test_a_cordon_is_distinguished_from_health() -> None:
    cordoned = replace(FIT, is_cordoned=True)
    found = verdict([*host("a", 8), *host("b", 8, facts=cordoned)], job("j", nodes=2, gpus=8))
    assert found.binding is WaitReason.CORDON


def test_what_is_in_use_binds_only_where_the_numbers_do_not_suffice() -> None:
    assert verdict(racks({"r": [8, 0]}), job("j", nodes=2, gpus=8)).binding is WaitReason.IN_USE
    crumbs = verdict(racks({"r": [4, 4, 4]}), job("j", gpus=8))
    assert crumbs.binding is WaitReason.FRAGMENTATION
    assert counts(crumbs) == {WaitReason.IN_USE: (12, 3), WaitReason.FRAGMENTATION: (12, 3)}


def test_hosts_in_use_bind_where_those_with_free_gpus_are_too_few_and_none_is_a_crumb() -> None:
    found = verdict(racks({"r": [8, 0, 0]}), job("j", nodes=3, gpus=1))
    assert found.binding is WaitReason.IN_USE
    assert WaitReason.FRAGMENTATION not in counts(found)


def test_cohorts_and_levels_are_distinguished() -> None:
    mixed = verdict([*host("a", 8), *host("b", 8, cohort="a100")], job("j", nodes=2, gpus=8))
    assert mixed.binding is WaitReason.COHORT
    assert counts(mixed)[WaitReason.COHORT] == (8, 1)
    apart = verdict(racks({"r0": [8], "r1": [8]}), job("j", nodes=2, gpus=8, required="rack"))
    assert apart.binding is WaitReason.TOPOLOGY


def test_slices_bind_where_they_are_rounded_down_and_not_where_places_are_unknown() -> None:
    wanted = replace(job("j", nodes=4, gpus=8), rule=PlacementRule(slices=(Slice("rack", 2),)))
    known = verdict(racks({"r0": [8, 8, 8], "r1": [8]}), wanted)
    assert known.binding is WaitReason.SLICES
    assert "of 4 before they are rounded down" in known.why
    unknown = verdict([*racks({"r0": [8, 8]}), *host("a", 8), *host("b", 8)], wanted)
    assert unknown.binding is WaitReason.TOPOLOGY
    assert "rounded down" not in unknown.why


def test_a_gang_that_the_fleet_could_never_hold_is_reported_so() -> None:
    assert verdict(host("a", 8), job("j", nodes=2, gpus=8)).binding is WaitReason.CAPACITY
    assert verdict([*host("a", 4), *host("b", 4)], job("j", gpus=8)).binding is WaitReason.CAPACITY


def test_a_host_that_is_avoided_after_a_fault_is_counted_and_the_one_in_use_elsewhere_binds() -> None:
    wanted = replace(job("j", gpus=8), avoid_nodes=frozenset({NodeId("a")}))
    elsewhere = hold(host("b", 8), {f"b-{slot}" for slot in range(8)})
    found = verdict([*host("a", 8), *elsewhere], wanted)
    assert (found.binding, counts(found)[WaitReason.AVOIDED]) == (WaitReason.IN_USE, (8, 1))


def test_quota_is_reported_with_the_gpus_that_are_too_many() -> None:
    workload = Workload(NOW_MS, tenancy=Tenancy.of_ceilings({(TenantId("waiter"), "on_demand"): 4}))
    found = verdict(host("a", 8), job("j", gpus=8), workload)
    assert (found.binding, counts(found)) == (WaitReason.QUOTA, {WaitReason.QUOTA: (4, None)})


def test_the_cap_on_reclaim_is_reported_after_what_binds() -> None:
    policy = DEFAULT_POLICY.model_copy(update={"reclaim": ReclaimPolicy(cap_fraction=0.01)})
    spot = [running(f"s{number}", of_host("a", 4, 4 * number)) for number in range(2)]
    gpus = hold(host("a", 8), of_host("a"))
    found = verdict(gpus, job("j", gpus=8, tier="reserved"), Workload(NOW_MS, tuple(spot)), policy)
    assert found.binding is WaitReason.IN_USE
    assert found.reasons[-1] == Reason(WaitReason.RECLAIM_CAP, 4)


def test_what_keeps_reclaim_from_helping_is_reported_with_the_gpus_that_would_give_way() -> None:
    gpus = [*hold(host("a", 8), of_host("a")), *hold(host("b", 8), of_host("b"))]
    wanted = job("j", nodes=2, gpus=8, tier="reserved")
    young = [running(f"s{name}", of_host(name), minutes=1) for name in "ab"]
    assert verdict(gpus, wanted, Workload(NOW_MS, tuple(young))).reasons[-1] == Reason(WaitReason.RECLAIM_MIN_RUN, 16)
    firm = (running("s", of_host("a")), running("t", of_host("b"), tier="on_demand"))
    assert verdict(gpus, wanted, Workload(NOW_MS, firm)).reasons[-1] == Reason(WaitReason.RECLAIM_TOO_LITTLE, 8)


def test_gpus_that_are_reclaimed_for_it_are_reported() -> None:
    gpus = hold(host("a", 8), of_host("a"))
    found = verdict(gpus, job("j", gpus=8, tier="reserved"), Workload(NOW_MS, (running("s", of_host("a")),)))
    assert counts(found)[WaitReason.RECLAIM_NOTIFIED] == (8, None)


@st.composite
def fleets(draw: st.DrawFn) -> list[GpuView]:
    gpus: list[GpuView] = []
    for number in range(draw(st.integers(1, 6))):
        path = draw(st.sampled_from([(), ("r0",), ("r1",)]))
        cohort = draw(st.sampled_from(["h100", "a100"]))
        one, other = draw(FACTS | st.just(FIT)), draw(FACTS | st.just(FIT))
        views = host(f"n{number}", draw(st.integers(1, 4)), cohort=cohort, path=path)
        gpus += [replace(view, facts=one if view.slot_index < 2 else other) for view in views]
    return gpus


def through(gpus: list[GpuView], wanted: WaitingJob) -> tuple[FleetState, Funnel]:
    state = FleetState(gpus, DEFAULT_POLICY)
    return state, funnel(state, request_of(wanted), ~state.is_free & False)


@given(fleets(), st.integers(1, 4), st.integers(1, 4), st.sampled_from([None, "rack"]), st.integers(0, 1))
def test_each_gpu_of_the_fleet_is_counted_once(
    gpus: list[GpuView], nodes: int, width: int, required: str | None, num_avoided: int
) -> None:
    wanted = replace(
        job("j", nodes=nodes, gpus=width, required=required),
        avoid_nodes=frozenset({gpus[0].node_id} if num_avoided else ()),
    )
    state, found = through(gpus, wanted)
    assert sum(reason.num_gpus or 0 for reason in found.reasons) + found.num_gpus == len(gpus)
    assert found.num_hosts == most_nodes(state, request_of(wanted))
    order = [list(WaitReason).index(reason.token) for reason in found.reasons]
    assert order == sorted(order)
    assert found.binding in {reason.token for reason in found.reasons}
    fits = most_nodes(state, request_of(wanted)) >= nodes
    assert (found.binding is WaitReason.TRIED_AGAIN) == fits
