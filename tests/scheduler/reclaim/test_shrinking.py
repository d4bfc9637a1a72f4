"""Elastic victims: they give hosts and continue with fewer before any gang has to end, never below their fewest."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, NodeId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.tiers import ReclaimPolicy
from scheduler.model import ElasticGang, GpuView, Plan, RunningAttempt, StandingReclaim, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.solve.placement_rule import PlacementRule, Slice
from tests.scaled import examples
from tests.scheduler.fleets import NOW_MS, hold, job, of_host, racks, running

PEAKS = {TenantId("owner"): 1_000, TenantId("other"): 1_000}


def elastic(name: str, hosts: Sequence[str], fewest: int, *, tenant: str = "owner", saved: float = 1) -> RunningAttempt:
    parts = tuple((NodeId(host), tuple(GpuUuid(uuid) for uuid in of_host(host))) for host in hosts)
    attempt = running(name, [u for host in hosts for u in of_host(host)], tenant=tenant, saved_minutes=saved)
    return replace(attempt, elastic=ElasticGang(parts, fewest, len(hosts), 8))


def decide(
    gpus: list[GpuView],
    queue: list[WaitingJob],
    attempts: Sequence[RunningAttempt],
    *,
    policy: Policy = DEFAULT_POLICY,
    peaks: dict[TenantId, int] = PEAKS,
    reclaims: Sequence[StandingReclaim] = (),
) -> Plan:
    held = hold(gpus, [uuid for attempt in attempts for uuid in attempt.gpus])
    return plan(held, queue, policy, Workload(NOW_MS, tuple(attempts), tuple(reclaims), (), peaks))


def hosts_of(uuids: Sequence[GpuUuid]) -> list[str]:
    return sorted({uuid.rsplit("-", 1)[0] for uuid in uuids})


FIVE = racks({"r0": [8, 8, 8, 8, 8]})
GANG = job("gang", nodes=1, gpus=8, tier="reserved")


def test_an_elastic_gang_gives_its_last_host_although_another_gang_would_lose_less() -> None:
    attempts = [elastic("e", ["r0h0", "r0h1", "r0h2", "r0h3"], 2), running("v", of_host("r0h4"), saved_minutes=1)]
    (reclaim,) = decide(FIVE, [GANG], attempts).reclaims
    assert reclaim.victim == "e"
    assert hosts_of(reclaim.gpus) == ["r0h3"]
    assert hosts_of(reclaim.keeps) == ["r0h0", "r0h1", "r0h2"]
    assert reclaim.cost_gpu_s == 32 * (60 + 120), "all of its GPUs start again"
    assert reclaim.runner_up is not None
    assert (reclaim.runner_up.victims, reclaim.runner_up.cost_gpu_s) == (("v",), 8 * 180)


@pytest.mark.parametrize("factor", [0, 10])
def test_the_runner_up_takes_others_than_the_choice(factor: float) -> None:
    """Whole, it would be the cheapest as well; if no other suffices there is no runner-up."""
    policy = Policy(reclaim=ReclaimPolicy(shrink_cost_factor=factor))
    small = elastic("e", ["r0h0", "r0h1"], 1)
    (alone,) = decide(racks({"r0": [8, 8]}), [GANG], [small], policy=policy).reclaims
    assert (alone.victim, alone.runner_up) == ("e", None)
    beside = [small, running("stale", [*of_host("r1h0"), *of_host("r1h1")], saved_minutes=60)]
    gang = job("gang", nodes=1, gpus=8, tier="reserved", required="rack")
    (reclaim,) = decide(racks({"r0": [8, 8], "r1": [8, 8]}), [gang], beside, policy=policy).reclaims
    assert reclaim.victim == "e"
    assert reclaim.runner_up is not None
    assert reclaim.runner_up.victims == ("stale",)


@pytest.mark.parametrize(("factor", "victim"), [(0, "v"), (3.9, "v"), (4, "e")])
def test_unless_that_loses_too_many_times_as_much(factor: float, victim: str) -> None:
    attempts = [elastic("e", ["r0h0", "r0h1", "r0h2", "r0h3"], 2), running("v", of_host("r0h4"), saved_minutes=1)]
    policy = Policy(reclaim=ReclaimPolicy(shrink_cost_factor=factor))
    (reclaim,) = decide(FIVE, [GANG], attempts, policy=policy).reclaims
    assert reclaim.victim == victim
    assert reclaim.runner_up is not None
    assert reclaim.runner_up.victims == (("e",) if victim == "v" else ("v",))


def test_next_to_a_gang_that_has_to_end_it_gives_no_more_hosts_than_it_can_spare() -> None:
    """Four of six hosts are needed: one gang of three ends, and the elastic one of three continues with its fewest."""
    attempts = [
        elastic("e", ["r0h0", "r0h1", "r0h2"], 2),
        running("v", [uuid for host in ("r0h3", "r0h4", "r0h5") for uuid in of_host(host)], tenant="other"),
    ]
    wide = replace(job("gang", nodes=4, gpus=8, tier="reserved"), required_level="rack")
    found = {str(one.victim): one for one in decide(racks({"r0": [8] * 6}), [wide], attempts).reclaims}
    assert found.keys() == {"e", "v"}
    assert hosts_of(found["e"].keeps) == ["r0h0", "r0h1"]
    assert hosts_of(found["e"].gpus) == ["r0h2"]
    assert found["v"].keeps == ()


def test_none_goes_below_its_fewest_so_two_give_one_host_each() -> None:
    attempts = [elastic("e", ["r0h0", "r0h1"], 1), elastic("f", ["r0h2", "r0h3"], 1)]
    decided = decide(racks({"r0": [8, 8, 8, 8]}), [job("gang", nodes=2, gpus=8, tier="reserved")], attempts)
    assert [(one.victim, hosts_of(one.keeps)) for one in decided.reclaims] == [("e", ["r0h0"]), ("f", ["r0h2"])]


def test_one_that_has_its_fewest_gives_all_or_nothing() -> None:
    (reclaim,) = decide(racks({"r0": [8, 8]}), [GANG], [elastic("e", ["r0h0", "r0h1"], 2)]).reclaims
    assert len(reclaim.gpus) == 16
    assert reclaim.keeps == ()


def test_what_it_gives_lies_in_the_one_rack_that_is_required() -> None:
    gang = job("gang", nodes=2, gpus=8, tier="reserved", required="rack")
    attempts = [elastic("e", ["r0h0", "r1h0", "r1h1"], 1)]
    (reclaim,) = decide(racks({"r0": [8], "r1": [8, 8]}), [gang], attempts).reclaims
    assert hosts_of(reclaim.gpus) == ["r1h0", "r1h1"]
    assert hosts_of(reclaim.keeps) == ["r0h0"]


def test_only_what_it_gives_counts_toward_its_tenants_cap() -> None:
    attempts = [elastic("e", ["r0h0", "r0h1", "r0h2", "r0h3"], 1)]
    gpus = racks({"r0": [8, 8, 8, 8]})
    peaks = {TenantId("owner"): 32}
    attempts.append(running("small", ["x-0"], tenant="owner"))
    (reclaim,) = decide(gpus, [GANG], attempts, peaks=peaks).reclaims
    assert hosts_of(reclaim.gpus) == ["r0h3"], "8 of 32 are its quarter"
    two = decide(gpus, [job("gang", nodes=2, gpus=8, tier="reserved")], attempts, peaks=peaks)
    assert two.reclaims == ()


TEN = racks({"r0": [8] * 10})
WIDE = elastic("e", [f"r0h{number}" for number in range(8)], 2)
RIGID = running("v", of_host("r0h8"), tenant="other", saved_minutes=10)
CAPPED = [WIDE, RIGID, running("small", of_host("r0h9"), tier="on_demand")]
"""Of 72 GPUs of its tenant 18 may be lost: two hosts of it."""


def test_where_the_cap_leaves_it_too_few_hosts_to_give_another_ends_next_to_it() -> None:
    found = {str(one.victim): one for one in decide(TEN, [replace(GANG, nodes=3)], CAPPED, peaks={}).reclaims}
    assert found.keys() == {"e", "v"}
    assert hosts_of(found["e"].gpus) == ["r0h6", "r0h7"]
    assert len(found["e"].keeps) == 48
    assert found["v"].keeps == ()


def test_where_both_are_too_little_within_their_caps_the_cap_is_reported() -> None:
    decided = decide(TEN, [replace(GANG, nodes=4)], CAPPED, peaks={})
    assert decided.reclaims == ()
    assert "the cap on what a tenant may lose" in decided.waiting[0].why


@settings(max_examples=examples(150))
@given(
    owners=st.lists(st.sampled_from(["e", "e", "f", "v", "w", None]), min_size=8, max_size=8),
    fewest=st.integers(1, 3),
    nodes=st.integers(2, 6),
    required=st.sampled_from([None, "rack"]),
    fraction=st.sampled_from([0.4, 0.6, 0.8]),
)
@example(owners=["e", "e", "e", "e", "v", "f", "f", "f"], fewest=1, nodes=3, required=None, fraction=0.4)
def test_a_mix_makes_room_within_each_cap_and_none_goes_on_below_its_fewest(
    owners: list[str | None], fewest: int, nodes: int, required: str | None, fraction: float
) -> None:
    names = [f"r{rack}h{number}" for rack in range(2) for number in range(4)]
    own = {name: [host for host, owner in zip(names, owners, strict=True) if owner == name] for name in "efvw"}
    attempts = [elastic(name, own[name], min(fewest, len(own[name]))) for name in "ef" if own[name]]
    gangs = [(name, [uuid for host in own[name] for uuid in of_host(host)]) for name in "vw" if own[name]]
    attempts += [running(name, uuids, tenant="other") for name, uuids in gangs]
    attempts.append(running("small", ["x-0"], tier="on_demand"))
    gpus = racks({"r0": [8] * 4, "r1": [8] * 4})
    gang = job("gang", nodes=nodes, gpus=8, tier="reserved", required=required)
    policy = Policy(reclaim=ReclaimPolicy(cap_fraction=fraction))
    reclaims = decide(gpus, [gang], attempts, policy=policy, peaks={}).reclaims
    by_name = {attempt.attempt_id: attempt for attempt in attempts}
    idle = {host for host, owner in zip(names, owners, strict=True) if owner is None}
    given_by: dict[TenantId, int] = {}
    for one in reclaims:
        victim = by_name[one.victim]
        assert set(one.gpus) | set(one.keeps) == set(victim.gpus)
        assert victim.elastic is None or not one.keeps or len(one.keeps) >= 8 * victim.elastic.min_nodes
        assert set(hosts_of(one.hold)) <= idle | {host for each in reclaims for host in hosts_of(each.gpus)}
        given_by[victim.tenant_id] = given_by.get(victim.tenant_id, 0) + len(one.gpus)
    for tenant, given_up in given_by.items():
        sizes = [len(attempt.gpus) for attempt in attempts if attempt.tenant_id == tenant]
        assert given_up <= max(fraction * sum(sizes), min(sizes))


def test_what_it_keeps_comes_free_to_no_other() -> None:
    attempts = [elastic("e", ["r0h0", "r0h1", "r0h2"], 1)]
    queue = [GANG, job("next", nodes=2, gpus=8, tier="reserved", at=1)]
    decided = decide(racks({"r0": [8, 8, 8]}), queue, attempts)
    assert [one.beneficiary for one in decided.reclaims] == ["gang"]
    (first,) = decided.reclaims
    standing = StandingReclaim(first.victim, first.beneficiary, NOW_MS + 60_000, first.hold, first.keeps)
    again = decide(racks({"r0": [8, 8, 8]}), queue, attempts, reclaims=[standing])
    assert again.reclaims == ()
    assert not again.withdrawals
    assert not any("become free" in waiting.why for waiting in again.waiting if waiting.job_id == "next")


@settings(max_examples=examples(150))
@given(st.data())
def test_a_shrink_makes_room_with_no_host_too_many(data: st.DataObject) -> None:
    """P4 for hosts: no host that is given could have stayed; no gang goes below its fewest; the cap holds."""
    names = [f"r{rack}h{number}" for rack in range(2) for number in range(4)]
    gpus = racks({"r0": [8] * 4, "r1": [8] * 4})
    owners = data.draw(st.lists(st.sampled_from(["e", "f", None]), min_size=8, max_size=8))
    attempts = []
    for name in ("e", "f"):
        own = [host for host, owner in zip(names, owners, strict=True) if owner == name]
        if own:
            fewest = data.draw(st.integers(1, len(own)))
            saved = data.draw(st.sampled_from([1.0, 5.0, 50.0]))
            attempts.append(elastic(name, own, fewest, tenant=name, saved=saved))
    wanted = data.draw(st.integers(1, 4))
    required = data.draw(st.sampled_from([None, "rack"]))
    gang = job("gang", nodes=wanted, gpus=8, tier="reserved", required=required)
    decided = decide(gpus, [gang], attempts, peaks={TenantId("e"): 1000, TenantId("f"): 1000})
    shrunk = [one for one in decided.reclaims if one.keeps]
    by_id = {attempt.attempt_id: attempt for attempt in attempts}
    for one in shrunk:
        gang_of = by_id[one.victim].elastic
        assert gang_of is not None
        assert len(hosts_of(one.keeps)) >= gang_of.min_nodes
        assert {*one.gpus, *one.keeps} == set(by_id[one.victim].gpus)
        assert set(hosts_of(one.gpus)) <= set(hosts_of(one.hold)), "each host that it gives is used"
    if decided.reclaims:
        given = {uuid for one in decided.reclaims for uuid in one.gpus}
        freed = [
            replace(attempt, gpus=tuple(u for u in attempt.gpus if u not in given), elastic=None)
            for attempt in attempts
        ]
        assert decide(gpus, [gang], freed).placements, "together they free enough"


def test_for_slices_it_gives_the_hosts_that_complete_one() -> None:
    rule = PlacementRule(slices=(Slice("rack", 2),))
    gang = replace(job("gang", nodes=2, gpus=8, tier="reserved"), rule=rule)
    attempts = [elastic("e", ["r0h0", "r1h0", "r1h1"], 1)]
    gpus = racks({"r0": [8, 8], "r1": [8, 8], "r2": [8]})
    (reclaim,) = decide(gpus, [gang], attempts).reclaims
    assert hosts_of(reclaim.gpus) == ["r0h0"]
    assert hosts_of(reclaim.hold) == ["r0h0", "r0h1"]
    assert not decide(racks({"r0": [8, 8], "r2": [8]}), [gang], [elastic("e", ["r0h0", "r0h1"], 2)]).placements
