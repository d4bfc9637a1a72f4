"""F of hosts and domains: the tables say what a count by hand says, and the place taken raises it least."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.placement import FragmentationPolicy, TypicalRequest
from scheduler.fleet.fragmentation import mix_of, whole_hosts
from scheduler.fleet.topology import FleetState
from scheduler.model import NO_WORKLOAD, GpuView, Shape, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.solve.solver import Request, place
from tests.scaled import examples
from tests.scheduler.fleets import NOW_MS, host, job, racks, running

PODS = {"r0": "p0", "r1": "p0", "r2": "p1", "r3": "p1"}
LEVELS = ("pod", "rack")
SHAPES = st.builds(
    Shape,
    nodes=st.integers(1, 6),
    gpus_per_node=st.sampled_from([1, 2, 3, 4, 8]),
    required=st.sampled_from([None, "pod", "rack"]),
)
MIXES = st.dictionaries(SHAPES, st.integers(1, 9).map(float), min_size=1, max_size=5)
FREE = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=4), min_size=4, max_size=4)
PICKS = st.lists(st.integers(0, 160), max_size=40)
MANY = settings(max_examples=examples(100))


def fleet(free: list[list[int]], mix: dict[Shape, float], *, is_mixed: bool = False) -> FleetState:
    """``is_mixed``: with hosts of another width, and one of unknown place."""
    gpus = racks({f"r{number}": hosts for number, hosts in enumerate(free)}, pods=PODS)
    if is_mixed:
        gpus += [gpu for number in range(3) for gpu in host(f"t{number}", 4, cohort="t", path=("p0", "r0"))]
        gpus += host("lost", 8)
    state = FleetState(gpus, DEFAULT_POLICY, LEVELS)
    state.expect(tuple(sorted(mix.items(), key=lambda one: one[0].key)))
    return state


def fragments_of(state: FleetState) -> tuple[int, int]:
    """F of the whole fleet, host by host and domain by domain, from nothing but what is free: of hosts and racks, and
    of pods.
    """
    layout, counts = state.layout, state.recount("on_demand")
    level_of: dict[Shape, int] = {}
    for shape, _ in state.mix:
        told_at = (layout.level(shape.required),) if shape.required else range(layout.node_level - 1, 0, -1)
        holding = [level for level in told_at if level and layout.largest[level] >= shape.nodes]
        if shape.nodes == 1 or holding:
            level_of[shape] = layout.node_level if shape.nodes == 1 else holding[0]
    asked = {shape: number * shape.nodes * shape.gpus_per_node for shape, number in state.mix if shape in level_of}
    narrow = wide = 0
    for shape, gpus in asked.items():
        share, lost = round(1000 * gpus / sum(asked.values())), 0
        narrow += share * sum(int(count) % shape.gpus_per_node for count in counts)
        groups = layout.groups[level_of[shape]]
        for group in set(groups[groups >= 0].tolist()) if shape.nodes > 1 else ():
            width = 4 if layout.cohort_keys[layout.cell_cohort[groups == group][0]] == "t" else 8
            if width // 2 < shape.gpus_per_node <= width:
                lost += shape.gpus_per_node * (int((counts[groups == group] >= width).sum()) % shape.nodes)
        narrow, wide = (narrow, wide + share * lost) if level_of[shape] == 1 else (narrow + share * lost, wide)
    return narrow, wide


def reported(state: FleetState) -> tuple[int, int]:
    """The same by the tables, from the counts that are kept."""
    fragments, layout = state.fragments, state.layout
    of_level = {2: int(fragments.of_host[state.tier("on_demand").counts].sum()), 1: 0}
    for level in fragments.levels:
        whole = whole_hosts(state, "on_demand").num_cells(level)[:-1]
        of_level[level] += int(fragments.of_domains(level, np.arange(layout.num_groups[level]), whole).sum())
    return of_level[2], of_level[1]


def rise_of(state: FleetState, cells: list[int], gpus: int) -> tuple[int, int]:
    """What taking so many GPUs of each of these cells adds."""
    free = [state.layout.gpus_of_cells(np.array([cell])) for cell in cells]
    taken = np.concatenate([own[state.is_free[own]][:gpus] for own in free])
    before = fragments_of(state)
    state.take(taken)
    after = fragments_of(state)
    state.give(taken)
    return after[0] - before[0], after[1] - before[1]


@MANY
@given(free=FREE, mix=MIXES, picks=PICKS, is_mixed=st.booleans())
def test_the_tables_and_the_kept_counts_state_what_a_full_count_states(
    free: list[list[int]], mix: dict[Shape, float], picks: list[int], *, is_mixed: bool
) -> None:
    state = fleet(free, mix, is_mixed=is_mixed)
    assert reported(state) == fragments_of(state)
    gpus = np.unique([pick for pick in picks if pick < len(state.layout.uuids)]).astype(np.int64)
    gpus = gpus[state.is_free[gpus]]
    state.take(gpus)
    assert reported(state) == fragments_of(state)
    state.give(gpus)
    assert reported(state) == fragments_of(state)


@MANY
@given(free=FREE, mix=MIXES, gpus=st.integers(1, 8), is_mixed=st.booleans())
def test_a_job_of_one_host_is_put_where_fragments_grow_least_of_all_hosts(
    free: list[list[int]], mix: dict[Shape, float], gpus: int, *, is_mixed: bool
) -> None:
    state = fleet(free, mix, is_mixed=is_mixed)
    chosen = place(state, Request("on_demand", 1, gpus))
    able = np.flatnonzero(state.recount("on_demand") >= gpus).tolist()
    rises = {cell: rise_of(state, [cell], gpus) for cell in able}
    assert (chosen is None) == (not rises)
    if chosen is not None:
        assert rises[int(chosen.cells[0])] == min(rises.values())


@MANY
@given(free=FREE, mix=MIXES, nodes=st.integers(2, 4), is_mixed=st.booleans())
def test_a_gang_of_whole_hosts_is_put_into_the_rack_where_fragments_grow_least(
    free: list[list[int]], mix: dict[Shape, float], nodes: int, *, is_mixed: bool
) -> None:
    state = fleet(free, mix, is_mixed=is_mixed)
    chosen = place(state, Request("on_demand", nodes, 8, required="rack"))
    racks_of, rises = state.layout.groups[2], {}
    for rack in range(state.layout.num_groups[2]):
        cells = np.flatnonzero((racks_of == rack) & (state.recount("on_demand") == 8))[:nodes]
        if len(cells) == nodes:
            rises[rack] = rise_of(state, cells.tolist(), 8)
    assert (chosen is None) == (not rises)
    if chosen is not None:
        assert rises[int(racks_of[chosen.cells[0]])] == min(rises.values())


@MANY
@given(
    whole=st.lists(st.integers(0, 8), min_size=2, max_size=6),
    nodes=st.integers(2, 8),
    mix=st.dictionaries(SHAPES, st.integers(1, 9).map(float), max_size=5),
)
def test_a_rack_with_exactly_enough_hosts_is_taken_whatever_is_requested(
    whole: list[int], nodes: int, mix: dict[Shape, float]
) -> None:
    """Nothing is left over there: with one level the mix and best fit agree."""
    free = {f"r{number}": [8] * count + [0] * (8 - count) for number, count in enumerate(whole)}
    state = FleetState(racks(free), DEFAULT_POLICY)
    state.expect(tuple(mix.items()))
    chosen = place(state, Request("on_demand", nodes, 8, required="rack"))
    if nodes in whole:
        assert chosen is not None
        assert whole[int(state.layout.cell_node[chosen.cells[0]][1])] == nodes


FOURS = {
    "four": TypicalRequest(gpus_per_node=8, nodes=4, level="rack"),
    "two": TypicalRequest(gpus_per_node=8, nodes=2, level="rack"),
}


def test_a_rack_that_others_ask_for_as_a_whole_is_left_to_them() -> None:
    """Four free hosts or five, and three are asked for: best fit takes of the four, though others ask for just four."""
    gpus, three = racks({"r0": [8] * 4 + [0], "r1": [8] * 5}), job("j", nodes=3, gpus=8, required="rack")
    assert rack_of(gpus, three, FragmentationPolicy(is_weighed=False)) == "r0"
    assert rack_of(gpus, three, FragmentationPolicy(typical=FOURS)) == "r1"


def test_the_rest_of_a_gang_over_several_racks_goes_where_fewest_others_lose_a_place() -> None:
    gpus, eight = racks({"r0": [8] * 4, "r1": [8] * 5, "r2": [8] * 5}), job("j", nodes=8, gpus=8)
    assert racks_of(gpus, eight, FragmentationPolicy(is_weighed=False)) == ["r0"] * 3 + ["r1"] * 5
    assert racks_of(gpus, eight, FragmentationPolicy(typical=FOURS)) == ["r1"] * 5 + ["r2"] * 3


def test_two_gpus_are_kept_together_for_what_requests_two() -> None:
    gpus, small = racks({"r0": [2, 3, 8]}), job("j", gpus=1)
    two = {"two": TypicalRequest(gpus_per_node=2)}
    assert hosts_of(gpus, small, FragmentationPolicy(is_weighed=False)) == ["r0h0"]
    assert hosts_of(gpus, small, FragmentationPolicy(typical=two)) == ["r0h1"]


def test_what_runs_and_what_waits_outweighs_what_the_policy_expects() -> None:
    rule = FragmentationPolicy(typical={"one": TypicalRequest(gpus_per_node=1)}, typical_jobs=1)
    gpus, three = racks({"r0": [8] * 4 + [0], "r1": [8] * 5}), job("j", nodes=3, gpus=8, required="rack")
    asked = [Shape(4, 8, "rack"), Shape(2, 8, "rack")]
    others = tuple(replace(running(f"a{number}", []), requested=asked[number % 2]) for number in range(9))
    assert rack_of(gpus, three, rule) == "r0"
    assert rack_of(gpus, three, rule, Workload(NOW_MS, others)) == "r1"
    later = [job(f"w{number}", nodes=asked[number % 2].nodes, gpus=8, required="rack", at=1) for number in range(9)]
    decided = plan(gpus, [three, *later], policy_of(rule), Workload(NOW_MS), levels=("rack",))
    assert next(item for item in decided.placements if item.job_id == "j").parts[0][0] == "r1h0"


def test_a_mix_is_of_jobs_that_state_what_they_request_and_of_none_where_it_is_not_weighed() -> None:
    told_by, silent = replace(running("a", []), requested=Shape(2, 8)), running("b", [])
    typical = {"x": TypicalRequest(gpus_per_node=1, weight=3), "y": TypicalRequest(gpus_per_node=8, nodes=2)}
    rule = FragmentationPolicy(typical=typical, typical_jobs=4)
    assert mix_of(rule, [told_by, silent], [job("w", nodes=2, gpus=8)]) == ((Shape(1, 1), 3.0), (Shape(2, 8), 3.0))
    assert mix_of(FragmentationPolicy(typical=typical, typical_jobs=0)) == ((Shape(1, 1), 0.75), (Shape(2, 8), 0.25))
    assert mix_of(FragmentationPolicy(typical={}), [silent]) == ()
    assert mix_of(FragmentationPolicy(is_weighed=False), [told_by]) == ()


def policy_of(rule: FragmentationPolicy) -> Policy:
    placement = DEFAULT_POLICY.placement.model_copy(update={"fragmentation": rule})
    return DEFAULT_POLICY.model_copy(update={"placement": placement})


def hosts_of(
    gpus: list[GpuView], wanted: WaitingJob, rule: FragmentationPolicy, workload: Workload = NO_WORKLOAD
) -> list[str]:
    decided = plan(gpus, [wanted], policy_of(rule), workload, levels=("rack",))
    return [node for item in decided.placements for node, _ in item.parts]


def racks_of(gpus: list[GpuView], wanted: WaitingJob, rule: FragmentationPolicy) -> list[str]:
    return [name[:2] for name in hosts_of(gpus, wanted, rule)]


def rack_of(
    gpus: list[GpuView], wanted: WaitingJob, rule: FragmentationPolicy, workload: Workload = NO_WORKLOAD
) -> str:
    (rack,) = {name[:2] for name in hosts_of(gpus, wanted, rule, workload)}
    return rack


def test_a_gang_of_parts_of_hosts_goes_where_hosts_are_in_use_already() -> None:
    """Whatever of a domain is left over by then: whole hosts are what other gangs need."""
    for num_half in (3, 4, 8):
        for num_whole in (3, 5, 7):
            gpus = racks({"r0": [8] * num_whole, "r1": [4] * num_half})
            placed = plan(gpus, [job("g", nodes=3, gpus=4)], DEFAULT_POLICY, Workload(NOW_MS)).placements[0]
            assert {node_id[:2] for node_id, _ in placed.parts} == {"r1"}, (num_half, num_whole)
