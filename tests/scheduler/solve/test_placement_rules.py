"""Slices, even spread, labels and health: what a gang asks of its place, held against a search of all there is."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, NodeId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, Parts, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.solve.balance import even_shares, least_share
from scheduler.solve.placement_rule import ANYWHERE, LabelRule, PlacementRule, Preference, Slice
from scheduler.solve.solver import most_nodes, place, request_of
from tests.scaled import examples
from tests.scheduler.fleets import NOW_MS, hold, host, job, of_host, racks, running

LEVELS = ("pod", "rack")
PODS = {"r0": "p0", "r1": "p0", "r2": "p1", "r3": "p1"}


def nodes_of(gpus: list[GpuView], wanted: WaitingJob, rule: PlacementRule) -> list[str]:
    placements = plan(gpus, [replace(wanted, rule=rule)], DEFAULT_POLICY, levels=LEVELS).placements
    return [node for node, _ in placements[0].parts] if placements else []


def slices(*reported: tuple[str, int]) -> PlacementRule:
    return PlacementRule(slices=tuple(Slice(level, nodes) for level, nodes in reported))


def test_each_slice_stands_in_one_rack_and_its_ranks_follow() -> None:
    gpus = racks({"r0": [8] * 3, "r1": [8] * 3, "r2": [8], "r3": [8]}, pods=PODS)
    found = nodes_of(gpus, job("j", nodes=4, gpus=8), slices(("rack", 2)))
    assert found == ["r0h0", "r0h1", "r1h0", "r1h1"]


def test_of_racks_with_as_many_slices_that_is_taken_which_leaves_fewest_hosts_over() -> None:
    """First the large ones whole, then the tightest: a rack of 5 hosts has two slices of 2 as one of 4 has."""
    gpus = racks(
        {"r0": [8] * 6, "r1": [8] * 5, "r2": [8] * 4, "r3": [8] * 3, "r4": [8] * 2},
        pods=dict.fromkeys(("r0", "r1", "r2", "r3", "r4"), "p0"),
    )
    found = nodes_of(gpus, job("j", nodes=12, gpus=8), slices(("rack", 2)))
    assert Counter(name[:2] for name in found) == {"r0": 6, "r2": 4, "r4": 2}


def test_of_an_elastic_home_only_whole_slices_count_and_the_rounding_is_reported() -> None:
    gpus = racks({"r0": [8] * 3, "r1": [8]}, pods=PODS)
    wanted = replace(job("j", nodes=4, gpus=8), rule=slices(("rack", 2)))
    verdict = plan(gpus, [wanted], DEFAULT_POLICY, levels=LEVELS).waiting[0].verdict
    assert verdict.binding is WaitReason.SLICES
    assert "only 2 of 4 hosts" in verdict.why
    assert "each 2 hosts in one rack" in verdict.why
    assert "of 4 before they are rounded down to whole slices" in verdict.why


def test_what_is_preferred_is_had_where_it_can_be_and_does_not_keep_any_waiting() -> None:
    rule = PlacementRule(preferred=(Preference((Slice("rack", 2),)),))
    wanted = job("j", nodes=4, gpus=8)
    wide = racks({"r0": [8] * 3, "r1": [8] * 3}, pods=PODS)
    assert nodes_of(wide, wanted, rule) == ["r0h0", "r0h1", "r1h0", "r1h1"]
    assert nodes_of(wide, wanted, ANYWHERE) == ["r0h0", "r0h1", "r0h2", "r1h0"]
    assert len(nodes_of(racks({"r0": [8] * 3, "r1": [8]}, pods=PODS), wanted, rule)) == 4


def test_a_level_of_slices_that_the_fleet_does_not_have_is_never_satisfied_and_reported() -> None:
    wanted = replace(job("j", nodes=2, gpus=8), rule=slices(("nvlink_domain", 2)))
    (waiting,) = plan(racks({"r0": [8, 8]}, pods=PODS), [wanted], DEFAULT_POLICY, levels=LEVELS).waiting
    assert "the fleet has no level named nvlink_domain" in waiting.why


def test_a_replacement_stands_in_the_rack_of_its_slice() -> None:
    gpus = racks({"r0": [8, 8, 8], "r1": [8, 0, 8]}, pods=PODS)
    keep = tuple((NodeId(name), tuple(map(GpuUuid, of_host(name)))) for name in ("r0h0", "r0h1", "r1h0", "r1h1"))
    wanted = replace(job("j", nodes=4, gpus=8), keep=keep)
    assert nodes_of(gpus, wanted, slices(("rack", 2))) == ["r0h0", "r0h1", "r1h0", "r1h2"]
    full = racks({"r0": [8, 8, 8], "r1": [8, 0, 0], "r2": [8, 8, 8]}, pods=PODS)
    assert nodes_of(full, wanted, slices(("rack", 2))) == ["r0h0", "r0h1", "r2h0", "r2h1"], "again: no rack spans"


def kept(*names: str) -> Parts:
    return tuple((NodeId(name), tuple(map(GpuUuid, of_host(name)))) for name in names)


def test_a_replacement_keeps_the_slices_that_were_preferred_for_where_one_can() -> None:
    """Both hosts of a slice are lost; their own rack has one host more, another rack has two."""
    gpus = racks({"r0": [8, 8], "r1": [0, 0, 8], "r2": [8, 8]}, pods=PODS)
    wanted = replace(job("j", nodes=4, gpus=8), keep=kept("r0h0", "r0h1", "r1h0", "r1h1"))
    wished = PlacementRule(preferred=(Preference((Slice("rack", 2),)),))
    assert nodes_of(gpus, wanted, wished) == ["r0h0", "r0h1", "r2h0", "r2h1"]
    assert nodes_of(gpus, wanted, ANYWHERE) == ["r0h0", "r0h1", "r1h2", "r2h0"], "the nearest of each"
    apart = racks({"r0": [8, 8], "r1": [0, 0, 8], "r2": [8]}, pods=PODS)
    assert nodes_of(apart, wanted, wished) == ["r0h0", "r0h1", "r1h2", "r2h0"], "and no job waits for a preference"


def test_a_replacement_keeps_an_even_spread_over_the_racks_that_the_gang_stood_in() -> None:
    pods = dict.fromkeys(("r0", "r1", "r2", "r3"), "p0")
    gpus = racks({"r0": [8, 8, 8, 8], "r1": [8, 8, 8], "r2": [0, 8]}, pods=pods)
    wanted = replace(job("j", nodes=6, gpus=8), keep=kept("r0h0", "r0h1", "r0h2", "r1h0", "r1h1", "r2h0"))
    spread = PlacementRule(balance="rack")
    assert nodes_of(gpus, wanted, spread) == ["r0h0", "r0h1", "r0h2", "r1h0", "r1h1", "r2h1"], "its own rack, if it can"
    full = racks({"r0": [8, 8, 8, 8], "r1": [8, 8, 8], "r2": [0], "r3": [8]}, pods=pods)
    assert nodes_of(full, wanted, spread)[-1] == "r1h2", "else that rack of its own which has fewest of its hosts"
    last = racks({"r0": [8, 8, 8], "r1": [8, 8], "r2": [0], "r3": [8]}, pods=pods)
    assert nodes_of(last, wanted, spread)[-1] == "r3h0", "else another"


def test_a_host_whose_rack_is_unknown_any_more_is_replaced_where_the_gang_is_spread_evenly() -> None:
    """Or the commit would refuse the same place again and again."""
    gpus = [*racks({"r0": [8, 8], "r1": [8, 8]}, pods=PODS), *host("lost", 8)]
    wanted = replace(job("j", nodes=4, gpus=8), keep=kept("r0h0", "r0h1", "r1h0", "lost"))
    assert nodes_of(gpus, wanted, ANYWHERE) == ["r0h0", "r0h1", "r1h0", "lost"]
    assert nodes_of(gpus, wanted, PlacementRule(balance="rack")) == ["r0h0", "r0h1", "r1h0", "r1h1"]


def test_a_reclaim_frees_whole_slices() -> None:
    hosts = [f"r{rack}h{number}" for rack in range(4) for number in range(2)]
    gpus = hold(
        racks({f"r{rack}": [8, 8] for rack in range(4)}, pods=PODS), [uuid for name in hosts for uuid in of_host(name)]
    )
    cheap = {"r0h0", "r1h0", "r2h0", "r2h1", "r3h0", "r3h1"}
    spot = [running(name, of_host(name), saved_minutes=1 if name in cheap else 100) for name in hosts]
    wanted = replace(job("j", nodes=4, gpus=8, tier="reserved"), rule=slices(("rack", 2)))
    decided = plan(
        gpus, [wanted], DEFAULT_POLICY, Workload(NOW_MS, tuple(spot), peak_gpus={spot[0].tenant_id: 999}), levels=LEVELS
    )
    assert {reclaim.victim for reclaim in decided.reclaims} == {"r2h0", "r2h1", "r3h0", "r3h1"}


def test_it_goes_where_it_spreads_most_evenly() -> None:
    gpus = racks({"r0": [8] * 4, "r1": [8] * 2, "r2": [8] * 3, "r3": [8] * 3}, pods=PODS)
    found = nodes_of(gpus, job("j", nodes=6, gpus=8), PlacementRule(balance="rack"))
    assert Counter(name[:2] for name in found) == {"r2": 3, "r3": 3}


def test_labels_are_queried_of_each_host_and_what_they_leave_out_is_counted() -> None:
    new, old = (("gen", "new"),), (("gen", "old"),)
    gpus = [replace(gpu, labels=new if gpu.node_id == "a" else old) for gpu in (*host("a", 8), *host("b", 8))]
    gpus += host("c", 8)
    rule = PlacementRule(labels=LabelRule(required=(("gen", frozenset({"new"})),)))
    assert nodes_of(gpus, job("j", gpus=8), rule) == ["a"]
    (waiting,) = plan(gpus, [replace(job("j", nodes=2, gpus=8), rule=rule)], DEFAULT_POLICY).waiting
    assert waiting.verdict.binding is WaitReason.LABELS
    assert [(one.token, one.num_gpus) for one in waiting.verdict.reasons] == [(WaitReason.LABELS, 16)]
    forbidding = PlacementRule(labels=LabelRule(forbidden=(("gen", frozenset({"new", "old"})),)))
    assert nodes_of(gpus, job("j", gpus=8), forbidding) == ["c"]


WEAK = 2_000
"""Failures in 1,000,000 hours."""


def test_a_long_gang_leaves_more_over_rather_than_run_on_a_weak_gpu_and_a_short_one_does_not() -> None:
    """Eight weak GPUs of 2 failures in 1,000 h, for 1,000 h: 16 failures more; for a minute: none to speak of."""
    gpus = [
        *host("a0", 8, path=("p", "a"), health_cost=WEAK),
        *host("a1", 8, path=("p", "a")),
        *(view for number in range(4) for view in host(f"b{number}", 8, path=("p", "b"))),
    ]
    long = replace(job("j", nodes=2, gpus=8), expected_s=3_600_000.0)
    assert nodes_of(gpus, long, ANYWHERE) == ["b0", "b1"]
    assert nodes_of(gpus, replace(long, expected_s=60.0), ANYWHERE) == ["a0", "a1"]
    assert nodes_of(gpus, replace(long, nodes=5), ANYWHERE) == ["a1", "b0", "b1", "b2", "b3"]
    assert len(nodes_of(gpus, replace(long, nodes=6), ANYWHERE)) == 6, "weak ones are used where no others are"


def test_within_a_host_the_soundest_gpus_are_taken_and_a_small_spot_job_takes_the_weakest() -> None:
    gpus = [replace(view, health_cost=WEAK * (view.slot_index < 2)) for view in host("a", 4)]
    state = FleetState(gpus, DEFAULT_POLICY)
    for tier, slots in (("on_demand", [2, 3]), ("spot", [0, 1])):
        chosen = place(state, request_of(job("j", gpus=2, tier=tier), is_reclaimable=tier == "spot"))
        assert chosen is not None
        assert chosen.gpus.tolist() == slots


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 30), st.integers(1, 3))
def test_an_even_spread_is_over_the_fewest_domains_and_its_least_share_is_the_best_there_is(
    rooms: list[int], nodes: int, unit: int
) -> None:
    scaled, wanted = np.array(rooms) * unit, nodes * unit
    if scaled.sum() < wanted:
        assert least_share(scaled, wanted, unit) == 0
        return
    shares = even_shares(scaled, wanted, unit)
    used = [int(share) for share in shares if share]
    fewest = next(n for n in range(1, 7) if np.sort(scaled)[::-1][:n].sum() >= wanted)
    best = max(
        min(*group, wanted // unit // fewest * unit)
        for group in combinations(scaled.tolist(), fewest)
        if sum(group) >= wanted
    )
    assert (shares <= scaled).all()
    assert (sum(used), len(used), min(used)) == (wanted, fewest, best)
    assert least_share(scaled, wanted, unit) == best
    assert all(share % unit == 0 for share in used)


RULES = st.sampled_from(
    [slices(("rack", 2)), slices(("pod", 2)), slices(("pod", 4), ("rack", 2)), slices(("rack", 3)), ANYWHERE]
)


@settings(max_examples=examples(150))
@given(
    free=st.lists(st.lists(st.sampled_from([0, 8, 8]), min_size=1, max_size=3), min_size=4, max_size=4),
    rule=RULES,
    times=st.integers(1, 3),
    required=st.sampled_from([None, "pod", "rack"]),
    weak=st.integers(0, 3),
)
def test_on_small_fleets_a_place_is_found_exactly_where_a_search_of_all_finds_one(
    free: list[list[int]], rule: PlacementRule, times: int, required: str | None, weak: int
) -> None:
    """P3 and P10 with slices: the place that is found keeps the rule, and none is overlooked."""
    gpus = racks({f"r{number}": hosts for number, hosts in enumerate(free)}, pods=PODS)
    gpus = [replace(gpu, health_cost=WEAK * (gpu.node_id == f"r{weak}h0")) for gpu in gpus]
    place_of = {str(gpu.node_id): gpu.path for gpu in gpus}
    wanted = job("j", nodes=rule.step * times, gpus=8, required=required)
    found = nodes_of(gpus, wanted, rule)
    counts = {name: sum(count == 8 for count in hosts) for name, hosts in zip(PODS, free, strict=True)}
    assert bool(found) == (_room(counts, rule, required) >= wanted.nodes)
    for one in rule.slices:
        depth = LEVELS.index(one.level) + 1
        for start in range(0, len(found), one.nodes):
            assert len({place_of[name][:depth] for name in found[start : start + one.nodes]}) == 1
    assert len({place_of[name][: 0 if required is None else LEVELS.index(required) + 1] for name in found}) <= 1
    state = FleetState(gpus, DEFAULT_POLICY, LEVELS)
    assert (most_nodes(state, request_of(replace(wanted, rule=rule))) >= wanted.nodes) == bool(found)


def _room(counts: dict[str, int], rule: PlacementRule, required: str | None) -> int:
    """By plain arithmetic, level by level."""
    sizes = {one.level: one.nodes for one in rule.slices}
    of_rack = {rack: count - count % sizes.get("rack", 1) for rack, count in counts.items()}
    of_pod = Counter[str]()
    for rack, count in of_rack.items():
        of_pod[PODS[rack]] += count
    rounded = {pod: count - count % sizes.get("pod", 1) for pod, count in of_pod.items()}
    if required == "rack":
        return max(of_rack.values())
    return max(rounded.values()) if required == "pod" else sum(rounded.values())


@pytest.mark.parametrize("rule", [slices(("rack", 2)), PlacementRule(balance="rack")])
def test_a_host_of_unknown_place_is_no_part_of_it(rule: PlacementRule) -> None:
    assert nodes_of([*host("a", 8), *host("b", 8)], job("j", nodes=2, gpus=8), rule) == []
