"""Kept counts of weak hosts, labels, closings, slices and balance equal a count over the whole fleet."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet import cell_counts as keeping
from scheduler.fleet.layout import nesting_of
from scheduler.fleet.tally import Tally
from scheduler.fleet.topology import NO_NODE_FILTER, NOWHERE, FleetState, Ints
from scheduler.model import GpuView
from scheduler.solve.balance import least_share, least_shares
from scheduler.solve.health_cost import cell_costs, end_of_first_grade, kept_costs, weakness_of
from scheduler.solve.node_filter import has_labels, node_filter_of
from scheduler.solve.placement_rule import LabelRule, PlacementRule, Slice
from scheduler.solve.slices import in_whole_slices, num_in_whole_slices, room_by_numbers, rooms_of_domains
from scheduler.solve.solver import Request, fitting_cells, most_nodes, room_of
from tests.scaled import examples
from tests.scheduler.fleets import host, racks

LEVELS = ("pod", "rack")
FREE = st.lists(st.integers(0, 8), min_size=6, max_size=12)
WEAK = st.dictionaries(st.integers(0, 95), st.sampled_from([50, 2_000, 90_000]), max_size=30)
STEPS = st.lists(st.lists(st.integers(0, 95), min_size=1, max_size=4), min_size=1, max_size=12)
CLOSINGS = st.dictionaries(st.sampled_from(["r0h0", "r1h1", "r2h0", "lost1"]), st.integers(1, 9), max_size=4)
IN_A = LabelRule(required=(("zone", frozenset({"a"})),))
RULES = st.sampled_from(
    [
        PlacementRule(),
        PlacementRule(labels=IN_A),
        PlacementRule((Slice("rack", 2),), labels=IN_A),
        PlacementRule((Slice("pod", 4), Slice("rack", 2))),
        PlacementRule((Slice("rack", 3),), balance="rack"),
        PlacementRule((Slice("node", 1),)),
    ]
)
REQUESTS = st.builds(
    Request,
    st.sampled_from(["spot", "on_demand"]),
    st.integers(1, 6),
    st.integers(1, 8),
    required=st.sampled_from([None, "pod", "rack"]),
    avoid_nodes=st.sets(st.sampled_from([NodeId("r0h0"), NodeId("r1h0"), NodeId("lost0")])).map(frozenset),
    prefers_weak=st.booleans(),
    rule=RULES,
    maintenance_start_ms=st.none() | st.integers(1, 9),
)


def fleet(free: list[int], weak: dict[int, int]) -> FleetState:
    """Three racks in two pods; of two hosts the rack is not known; two cohorts, two zones, weak GPUs by number."""
    placed = racks({"r0": free[::3], "r1": free[1::3], "r2": free[2::3]}, pods={"r0": "p0", "r1": "p0", "r2": "p1"})
    gpus = [*placed, *host("lost0", 8), *host("lost1", 8, path=("p0",))]
    return FleetState([_graded(gpu, number, weak) for number, gpu in enumerate(gpus)], DEFAULT_POLICY, LEVELS)


def _graded(gpu: GpuView, number: int, weak: dict[int, int]) -> GpuView:
    cohort = "b200" if number // 8 % 4 == 1 and gpu.slot_index % 3 else "h100"
    zone = "b" if number // 8 % 3 == 2 else "a"
    return replace(gpu, cohort_key=cohort, labels=(("zone", zone),), health_cost=weak.get(number, 0))


def after_each(state: FleetState, steps: list[list[int]]) -> Iterator[FleetState]:
    """Something is taken or given; in the middle the rest continues in a fork, with more free GPUs."""
    for number, picks in enumerate(steps):
        gpus = np.unique([pick for pick in picks if pick < len(state.layout.uuids)]).astype(np.int64)
        if number % 3 == 1:
            state.give(gpus[~state.is_free[gpus]])
        else:
            state.take(gpus[state.is_free[gpus]])
        yield state
        if number == len(steps) // 2:
            is_free = state.is_free.copy()
            is_free[gpus] = True
            state = state.fork(is_free, ("spot", "on_demand"))
            yield state


def fitting(state: FleetState, request: Request) -> Ints:
    return fitting_cells(state, request, state.recount(request.tier))


def room(state: FleetState, request: Request) -> Tally:
    kept = state.tally(request.tier, request.gpus_per_node, node_filter_of(state, request))
    avoided = [cell for node in request.avoid_nodes for cell in state.layout.cells_of_node.get(node, ())]
    return kept.without(np.array(sorted(avoided), dtype=np.int64))


@settings(max_examples=examples(100))
@given(free=FREE, weak=WEAK, steps=STEPS, request=REQUESTS)
def test_kept_costs_are_those_of_each_cell_counted_again(
    free: list[int], weak: dict[int, int], steps: list[list[int]], request: Request
) -> None:
    state = fleet(free, weak)
    for each in after_each(state, steps):
        fits = np.flatnonzero(each.recount(request.tier) >= request.gpus_per_node)
        expected = np.zeros(each.layout.num_cells, dtype=np.int64)
        expected[fits] = np.abs(cell_costs(each, request, fits))
        assert kept_costs(each, request).costs.tolist() == expected.tolist()


@settings(max_examples=examples(150))
@given(free=FREE, weak=WEAK, steps=STEPS, request=REQUESTS, closings=CLOSINGS)
def test_a_kept_room_is_that_of_labels_closings_and_places_counted_again(
    free: list[int], weak: dict[int, int], steps: list[list[int]], request: Request, closings: dict[str, int]
) -> None:
    state = fleet(free, weak)
    state.close({NodeId("r1h0"): 1, NodeId("r2h1"): 9})
    most_nodes(state, request)  # of other closings yet
    state.close({NodeId(name): at_ms for name, at_ms in closings.items()})
    for each in after_each(state, steps):
        kept, cells = room(each, request), fitting(each, request)
        assert kept.cells.tolist() == cells.tolist()
        for level in range(each.layout.node_level + 1):
            expected = room_of(each.layout, request, cells, level).tolist()
            assert room_by_numbers(each.layout, request.rule.slices, kept, level).tolist() == expected
        assert most_nodes(each, request) == most_nodes(each, request, each.recount(request.tier))


@settings(max_examples=examples(150))
@given(free=FREE, weak=WEAK, steps=STEPS, request=REQUESTS)
def test_what_the_soundest_cells_of_a_group_cost_is_what_sorting_them_finds(
    free: list[int], weak: dict[int, int], steps: list[list[int]], request: Request
) -> None:
    state = fleet(free, weak)
    nodes = 1 if request.prefers_weak else request.nodes
    request = replace(request, nodes=nodes)
    for each in after_each(state, steps):
        kept, cells = room(each, request), fitting(each, request)
        costs = cell_costs(each, request, cells)
        for level in range(each.layout.node_level + 1):
            groups = each.layout.groups[level][cells]
            homes = np.flatnonzero(
                np.bincount(groups[groups != NOWHERE], minlength=each.layout.num_groups[level]) >= nodes
            )
            found = weakness_of(request, kept_costs(each, request), kept, level, homes) if len(homes) else None
            expected = [int(np.sort(costs[groups == home])[:nodes].sum()) for home in homes.tolist()]
            assert (expected if found is not None else [0] * len(homes)) == expected
            assert found is None or found.tolist() == expected


@settings(max_examples=examples(200))
@given(
    rooms=st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 4)), min_size=1, max_size=20),
    num_nodes=st.integers(1, 20),
    unit=st.integers(1, 3),
    most=st.sampled_from([27, 1 << 40]),
)
def test_the_least_shares_of_all_homes_are_those_of_each(
    rooms: list[tuple[int, int]], num_nodes: int, unit: int, most: int
) -> None:
    sizes = np.array([size * unit for size, _ in rooms], dtype=np.int64)
    around = np.array([home for _, home in rooms], dtype=np.int64)
    able = [home for home in range(5) if sizes[around == home].sum() >= num_nodes * unit]
    nesting = nesting_of(around, 5, most)
    found = least_shares(sizes, nesting, np.array(able, dtype=np.int64), num_nodes * unit, unit)
    assert found.tolist() == [least_share(sizes[around == home], num_nodes * unit, unit) for home in able]


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-1, 4)), max_size=20))
def test_what_lies_in_a_wider_domain_is_summed_up_there_and_what_lies_in_none_nowhere(
    rooms: list[tuple[int, int]],
) -> None:
    sizes = np.array([size for size, _ in rooms], dtype=np.int64)
    around = np.array([home for _, home in rooms], dtype=np.int64)
    found = nesting_of(around, 5, most=50).summed_up(sizes)
    assert found.tolist() == [int(sizes[around == home].sum()) for home in range(5)]


@settings(max_examples=examples(200))
@given(
    expected_s=st.none() | st.floats(1e-6, 1e9),
    tolerated=st.floats(1e-6, 1_000.0),
    cost=st.integers(0, 1 << 40),
    alongside=st.integers(-2, 2),
)
def test_a_cost_is_of_the_first_grade_as_far_as_its_failures_are_fewer_than_are_tolerated(
    expected_s: float | None, tolerated: float, cost: int, alongside: int
) -> None:
    """Asked at the end itself and around it too."""
    hazard = DEFAULT_POLICY.placement.hazard.model_copy(update={"tolerated_failures": tolerated})
    placement = DEFAULT_POLICY.placement.model_copy(update={"hazard": hazard})
    state = FleetState(host("h0", 8), DEFAULT_POLICY.model_copy(update={"placement": placement}), ())
    end = end_of_first_grade(state, Request("spot", 1, 8, expected_s=expected_s))
    run_s = DEFAULT_POLICY.queue.expected_run_s if expected_s is None else expected_s
    for one in (cost, min(max(end + alongside, 0), (1 << 53) - 1)):
        assert (one < end) == (one * (run_s / 3600 / 1_000_000) < tolerated)


@settings(max_examples=examples(150))
@given(free=FREE, request=REQUESTS)
def test_hosts_in_whole_slices_are_as_many_by_number_as_one_by_one(free: list[int], request: Request) -> None:
    state = fleet(free, {})
    layout, slices, cells = state.layout, request.rule.slices, fitting(state, request)
    for level in range(layout.node_level):
        for group in np.unique(layout.groups[level][cells]):
            inside = cells[layout.groups[level][cells] == group]
            whole = in_whole_slices(layout, slices, inside, level)
            assert num_in_whole_slices(layout, slices, inside, level) == len(whole)
            domain = layout.groups[level + 1][inside] + 1
            below = in_whole_slices(layout, slices, inside, level + 1)
            expected = [int((layout.groups[level + 1][below] + 1 == one).sum()) for one in range(int(domain.max()) + 1)]
            assert rooms_of_domains(layout, slices, inside, domain, level + 1).tolist() == expected


def test_a_weak_host_that_is_taken_costs_none_anything_and_given_back_what_it_did() -> None:
    state = fleet([8] * 6, {0: 2_000, 16: 90_000})
    request = Request("on_demand", 1, 8, required="rack")
    level, weak = 2, state.layout.gpus_of_cells(np.flatnonzero(state.layout.cell_health_cost == 2_000))

    def weakness() -> dict[int, int]:
        tally = room(state, request)
        homes = np.flatnonzero(tally.numbers(level) >= 1)
        found = weakness_of(request, kept_costs(state, request), tally, level, homes)
        return dict(zip(homes.tolist(), [0] * len(homes) if found is None else found.tolist(), strict=True))

    first = weakness()
    state.take(weak)
    taken = weakness()
    state.give(weak)
    assert first[0] == 2_000
    assert taken == {home: cost for home, cost in first.items() if home}
    assert weakness() == first


def test_what_is_kept_for_the_oldest_of_too_many_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MAX_KEPT", 3)
    state = fleet([8] * 6, {3: 2_000})
    for number in range(30):
        state.take(np.array([number], dtype=np.int64))
        for width in range(1, 9):
            request = Request("spot", 1, width, rule=PlacementRule(labels=IN_A))
            assert room(state, request).cells.tolist() == fitting(state, request).tolist()


def test_hosts_that_close_later_shut_none_out_and_equal_closings_share_what_is_kept() -> None:
    state = fleet([8] * 6, {})
    state.close({NodeId("r0h0"): 5})
    assert node_filter_of(state, Request("spot", 1, 8, maintenance_start_ms=4)) is NO_NODE_FILTER
    assert node_filter_of(state, Request("spot", 1, 8, maintenance_start_ms=5)) == node_filter_of(
        state, Request("spot", 2, 4, maintenance_start_ms=5)
    )
    labelled = Request("spot", 1, 8, rule=PlacementRule(labels=IN_A))
    excluded = node_filter_of(state, labelled).excluded(state)
    assert excluded.tolist() == np.flatnonzero(~has_labels(state.layout, labelled)).tolist()
