"""A gang that lost a host of its domain: another is reclaimed there at once, where that makes the swap possible."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.tiers import ReclaimPolicy
from muster.domain.states import Standing
from scheduler.model import Plan, ResumeHold, RunningAttempt, StandingReclaim, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.quota.tenancy import Tenancy
from scheduler.solve.placement_rule import PlacementRule, Slice
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, job, of_host, racks, running, standing

POLICY = Policy(reclaim=ReclaimPolicy(cap_fraction=1.0))
LAST = tuple((NodeId(name), tuple(map(GpuUuid, of_host(name)))) for name in ("r0h0", "r0h1", "r0h2"))
FLEET = {"r0": [8, 0, 8, 0], "r1": [0, 0, 0]}
"""The gang's second host is broken; ``r0h3`` runs what the test says."""


def gang(tier: str = "on_demand", *, seconds_ago: float = 1) -> WaitingJob:
    one = job("gang", nodes=3, gpus=8, tier=tier, required="rack", keep=LAST)
    return replace(one, interrupted_ms=NOW_MS - int(seconds_ago * 1000), avoid_nodes=frozenset({NodeId("r0h1")}))


def spot_on(*names: str, minutes: float = 120, ends: float | None = None) -> list[RunningAttempt]:
    return [
        running(f"on-{name}", of_host(name), tenant=f"owner-of-{name}", minutes=minutes, ends_minutes=ends)
        for name in names
    ]


def decide(
    attempts: Sequence[RunningAttempt],
    queue: Sequence[WaitingJob] = (),
    *,
    fleet: dict[str, list[int]] | None = None,
    policy: Policy = POLICY,
    reclaims: Sequence[StandingReclaim] = (),
    holds: Sequence[ResumeHold] = (),
    tenancy: Tenancy | None = None,
) -> Plan:
    given = Workload(NOW_MS, tuple(attempts), tuple(reclaims), holds=tuple(holds), tenancy=tenancy or Tenancy())
    return plan(racks(fleet or FLEET), list(queue) or [gang()], policy, given)


def nodes_assigned(decided: Plan) -> set[str]:
    return {str(uuid).rsplit("-", 1)[0] for reclaim in decided.reclaims for uuid in reclaim.hold}


def waits_for_its_rack(decided: Plan) -> bool:
    tokens = {reason.token for reason in decided.waiting[0].verdict.reasons}
    return WaitReason.REPLACEMENT in tokens and WaitReason.RECLAIM_NOTIFIED not in tokens and not decided.reclaims


def test_it_is_reclaimed_at_once_and_what_is_good_is_on_hold_with_it() -> None:
    decided = decide(spot_on("r0h3", "r1h0"))
    assert [reclaim.victim for reclaim in decided.reclaims] == ["on-r0h3"]
    assert nodes_assigned(decided) == {"r0h0", "r0h2", "r0h3"}
    reasons = {reason.token: reason for reason in decided.waiting[0].verdict.reasons}
    assert (reasons[WaitReason.REPLACEMENT].num_hosts, reasons[WaitReason.RECLAIM_NOTIFIED].num_hosts) == (2, 1)


def test_the_cheapest_in_its_rack_gives_way() -> None:
    dear, cheap = spot_on("r0h3", "r0h4")
    dear, cheap = replace(dear, saved_ms=None), replace(cheap, saved_ms=NOW_MS)
    decided = decide([dear, cheap], fleet={"r0": [8, 0, 8, 0, 0], "r1": [0]})
    assert [reclaim.victim for reclaim in decided.reclaims] == ["on-r0h4"]


@pytest.mark.parametrize(
    "attempts",
    [
        spot_on("r1h0", "r1h1", "r1h2"),
        spot_on("r0h3", minutes=5),
        [running("firm", of_host("r0h3"), tier="on_demand")],
        spot_on("r0h3", ends=1),
    ],
    ids=["another rack", "minimum run time", "a tier that is not reclaimed", "it ends soon"],
)
def test_else_none_is_reported_and_it_waits_with_its_hosts_kept(attempts: list[RunningAttempt]) -> None:
    decided = decide(attempts)
    assert waits_for_its_rack(decided)
    (held,) = decided.holds
    assert set(held.gpus) == {*of_host("r0h0"), *of_host("r0h2")}


def test_the_cap_of_its_tenant_spares_what_would_give_way() -> None:
    own = [replace(one, tenant_id=TenantId("owner")) for one in spot_on("r0h3", "r1h0")]
    lost = [standing("on-r1h0", "other", of_host("r1h0"))]
    half = Policy(reclaim=ReclaimPolicy(cap_fraction=0.5))
    queue = [gang(), job("other", gpus=8, at=1)]
    decided = decide(own, queue, policy=half, reclaims=lost)
    assert waits_for_its_rack(decided)
    assert decide(own, queue, reclaims=lost).reclaims


def test_none_is_reported_where_one_host_of_two_is_not_enough() -> None:
    assert waits_for_its_rack(decide(spot_on("r0h3"), fleet={"r0": [8, 0, 0, 0], "r1": [0, 0, 0]}))


def test_a_host_that_is_idle_and_one_that_is_reclaimed_replace_two() -> None:
    decided = decide(spot_on("r0h3"), fleet={"r0": [8, 0, 0, 0, 8], "r1": [0]})
    assert [reclaim.victim for reclaim in decided.reclaims] == ["on-r0h3"]
    assert nodes_assigned(decided) == {"r0h0", "r0h3", "r0h4"}


def test_of_a_gang_in_slices_it_is_a_host_in_the_slices_own_domain() -> None:
    fleet = {"r0": [8, 8], "r1": [8, 0, 0], "r2": [0]}
    names = ("r0h0", "r0h1", "r1h0", "r1h1")
    last = tuple((NodeId(name), tuple(map(GpuUuid, of_host(name)))) for name in names)
    rule = PlacementRule((Slice("rack", 2),))
    one = replace(job("gang", nodes=4, gpus=8, required="pod", keep=last), interrupted_ms=NOW_MS, rule=rule)
    pods = dict.fromkeys(fleet, "p0")
    for name, is_in_its_rack in (("r1h2", True), ("r2h0", False)):
        given = Workload(NOW_MS, tuple(spot_on(name)))
        decided = plan(racks(fleet, pods=pods), [one], POLICY, given, levels=("pod", "rack"))
        assert [reclaim.victim for reclaim in decided.reclaims] == ([f"on-{name}"] if is_in_its_rack else [])


def own_hold() -> ResumeHold:
    gpus = tuple(GpuUuid(uuid) for name, _ in LAST for uuid in of_host(name))
    return ResumeHold(JobId("gang"), gpus, TenantId("waiter"), "on_demand")


def test_what_it_kept_since_its_end_does_not_lapse_and_counts_once_of_its_quota() -> None:
    others = [job("two", nodes=2, gpus=8, at=1), job("one", gpus=8, at=2)]
    at_most = Tenancy.of_ceilings({(TenantId("waiter"), "on_demand"): 32})
    fleet = {"r0": [8, 7, 8, 0], "r1": [8, 8, 0]}
    decided = decide(spot_on("r0h3"), [gang(), *others], fleet=fleet, holds=[own_hold()], tenancy=at_most)
    assert [reclaim.victim for reclaim in decided.reclaims] == ["on-r0h3"]
    assert decided.lapses == ()
    assert [(one.job_id, len(one.parts)) for one in decided.placements] == [("one", 1)], "24 of the 32 are the gang's"


ON_HOLD = [uuid for name in ("r0h0", "r0h2", "r0h3") for uuid in of_host(name)]


def test_while_the_victim_leaves_it_goes_nowhere_else() -> None:
    fleet = {"r0": [8, 0, 8, 0], "r1": [8, 8, 8]}
    promised = standing("on-r0h3", "gang", ON_HOLD)
    decided = decide(spot_on("r0h3"), [gang(seconds_ago=200)], fleet=fleet, reclaims=[promised])
    assert (decided.placements, decided.withdrawals) == ((), ())
    assert "others of that rack are being reclaimed" in decided.waiting[0].why


def test_once_it_has_left_the_gang_goes_on_ranks_kept() -> None:
    fleet = {"r0": [8, 0, 8, 8], "r1": [8, 8, 8]}
    decided = decide([], [gang(seconds_ago=200)], fleet=fleet, reclaims=[standing("on-r0h3", "gang", ON_HOLD)])
    (placed,) = decided.placements
    assert [node for node, _ in placed.parts] == ["r0h0", "r0h3", "r0h2"]
    assert placed.swap is not None
    assert placed.swap.replaced == ((NodeId("r0h1"), NodeId("r0h3")),)


def test_a_host_of_its_rack_that_comes_free_before_is_taken_and_the_victim_goes_on() -> None:
    fleet = {"r0": [8, 0, 8, 0, 8], "r1": [0]}
    decided = decide(spot_on("r0h3"), [gang()], fleet=fleet, reclaims=[standing("on-r0h3", "gang", ON_HOLD)])
    assert [node for node, _ in decided.placements[0].parts] == ["r0h0", "r0h4", "r0h2"]
    assert [one.victim for one in decided.withdrawals] == ["on-r0h3"]


def test_where_what_is_reclaimed_makes_no_swap_any_more_the_victim_goes_on() -> None:
    gpus = racks({"r0": [8, 0, 8, 0], "r1": [0]})
    broken = [
        replace(gpu, facts=replace(gpu.facts, standing=Standing.QUARANTINED)) if gpu.node_id == "r0h2" else gpu
        for gpu in gpus
    ]
    given = Workload(NOW_MS, tuple(spot_on("r0h3")), (standing("on-r0h3", "gang", ON_HOLD),))
    for fleet, withdrawn in ((gpus, []), (broken, ["on-r0h3"])):
        assert [one.victim for one in plan(fleet, [gang()], POLICY, given).withdrawals] == withdrawn


def test_a_minute_after_the_deadline_it_goes_where_it_can() -> None:
    fleet = {"r0": [8, 0, 8, 0], "r1": [8, 8, 8]}
    late = replace(standing("on-r0h3", "gang", ON_HOLD), deadline_ms=NOW_MS - MINUTE_MS)
    decided = decide(spot_on("r0h3"), [gang(seconds_ago=300)], fleet=fleet, reclaims=[late])
    assert [node for node, _ in decided.placements[0].parts] == ["r1h0", "r1h1", "r1h2"]


def test_the_built_in_policy_waits_as_long_as_before_where_none_gives_way() -> None:
    waits_s = DEFAULT_POLICY.recovery.wait_for_replacement_s
    decided = decide([], [gang(seconds_ago=waits_s)], fleet={"r0": [8, 0, 8, 0], "r1": [8, 8, 8]})
    assert [node for node, _ in decided.placements[0].parts] == ["r1h0", "r1h1", "r1h2"]
