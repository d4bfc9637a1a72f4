"""The choice of victims is the same with and without what makes it quick."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView
from scheduler.reclaim import exact_sets, victims
from scheduler.reclaim.shares import shares_of
from scheduler.reclaim.victims import VictimCandidates, VictimSet, cheapest_covers, dispensable
from scheduler.solve.placement_rule import PlacementRule, Slice
from scheduler.solve.solver import Request, most_nodes
from tests.scaled import examples
from tests.scheduler.fleets import racks

OWNERS = st.lists(st.integers(-1, 9), min_size=96, max_size=96)
COSTS = st.lists(st.integers(1, 60), min_size=10, max_size=10)
ALLOWANCE = {0: 40.0, 1: 64.0, 2: 96.0}
REQUESTS = st.builds(
    Request,
    tier=st.just("reserved"),
    nodes=st.integers(1, 4),
    gpus_per_node=st.sampled_from([2, 8]),
    required=st.sampled_from([None, "rack"]),
)
SLICED = st.builds(
    Request,
    tier=st.just("reserved"),
    nodes=st.sampled_from([2, 4]),
    gpus_per_node=st.sampled_from([2, 4, 8]),
    rule=st.just(PlacementRule(slices=(Slice("rack", 2),))),
)


RACKS_OF = {None: [slice(12)], "rack": [slice(first, first + 3) for first in (0, 3, 6, 9)]}
"""The hosts of each domain in which the gang has to lie."""


def full_gpus() -> list[GpuView]:
    return racks({rack: [0] * 3 for rack in ("r0", "r1", "r2", "r3")})


def full_fleet() -> FleetState:
    return FleetState(full_gpus(), DEFAULT_POLICY)


def candidates(owners: Sequence[int], costs: Sequence[int]) -> VictimCandidates:
    """By host, four owners each at most: attempts span hosts and racks."""
    owner = np.array([owners[gpu // 2 * 2] for gpu in range(96)], dtype=np.int64)
    sizes = np.bincount(owner[owner >= 0], minlength=10).tolist()
    return VictimCandidates(
        owner, np.array(costs, dtype=np.float64), sizes, [number % 3 for number in range(10)], ALLOWANCE
    )


def test_the_example_that_opens_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, d = range(4)
    owner = np.array([a] * 4 + [b] * 4 + [a] * 4 + [c] * 4 + [d] * 8)
    asked = VictimCandidates(owner, np.array([6.0, 3.0, 3.0, 7.0]), [8, 4, 4, 8], [0] * 4, {0: 24.0})
    fleet = FleetState(racks({"r0": [0, 0, 0]}), DEFAULT_POLICY)
    gang = Request(tier="reserved", nodes=2, gpus_per_node=8, required="rack")
    exact = [(cover.victims, cover.cost) for cover in cheapest_covers(fleet, gang, asked)]
    assert exact == [((a, b, c), 12.0), ((a, b, d), 16.0)]
    monkeypatch.setattr(exact_sets, "MAX_KNOWN", 0)
    greedy = [(cover.victims, cover.cost) for cover in cheapest_covers(fleet, gang, asked)]
    assert greedy == [((a, b, d), 16.0)]
    for line in ("D, A, B: 16", "A, B, C: 12, with A, B, D as the runner-up"):
        assert line in (victims.__doc__ or "")


def test_a_greedy_run_counts_what_a_host_has_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host lacks 4 of 8 GPUs, which A alone gives: B is dearer."""
    monkeypatch.setattr(exact_sets, "MAX_KNOWN", 0)
    a, b = range(2)
    asked = VictimCandidates(np.array([-1] * 4 + [a] * 4 + [b] * 8), np.array([2.0, 5.0]), [4, 8], [0] * 2, {0: 24.0})
    fleet = FleetState(racks({"r0": [4, 0]}), DEFAULT_POLICY)
    one = Request(tier="reserved", nodes=1, gpus_per_node=8, required="rack")
    assert cheapest_covers(fleet, one, asked)[0].victims == (a,)


def test_victims_that_stay_in_every_set_give_their_gpus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the module's example with a host of E alone: only sets that keep B and E are tested, and C replaces D."""
    a, b, c, d, e = range(5)
    owner = np.array([a] * 4 + [b] * 4 + [a] * 4 + [c] * 4 + [d] * 8 + [e] * 8)
    asked = VictimCandidates(owner, np.array([6.0, 3.0, 3.0, 7.0, 1.0]), [8, 4, 4, 8, 8], [0] * 5, {0: 32.0})
    fleet = FleetState(racks({"r0": [0] * 4}), DEFAULT_POLICY)
    gang = Request(tier="reserved", nodes=3, gpus_per_node=8, required="rack")
    monkeypatch.setattr(exact_sets, "MAX_FREE", 4)
    monkeypatch.setattr(exact_sets, "MAX_SWAPPED", 4)
    best = cheapest_covers(fleet, gang, asked)[0]
    assert (sorted(best.victims), best.cost) == ([a, b, c, e], 13.0)


def found(request: Request, requested: VictimCandidates) -> list[VictimSet]:
    return cheapest_covers(full_fleet(), request, requested)


def best(request: Request, requested: VictimCandidates) -> int | None:
    """The least that any set costs which suffices and is within the allowances."""
    state, costs = full_fleet(), [int(cost) for cost in requested.costs]
    cell_of, num_cells = state.layout.cell_of_gpu, state.layout.num_cells
    gains = np.array([np.bincount(cell_of[requested.owner == victim], minlength=num_cells) for victim in range(10)])
    sets = [some for number in range(1, 11) for some in combinations(range(10), number)]
    for some in sorted(sets, key=lambda some: sum(costs[victim] for victim in some)):
        lost = [sum(requested.num_gpus[victim] for victim in some if victim % 3 == tenant) for tenant in ALLOWANCE]
        is_allowed = all(number <= ALLOWANCE[tenant] for tenant, number in enumerate(lost))
        if is_allowed and most_nodes(state, request, gains[list(some)].sum(axis=0)) >= request.nodes:
            return sum(costs[victim] for victim in some)
    return None


@settings(max_examples=examples(60))
@given(owners=OWNERS, costs=COSTS, request=REQUESTS | SLICED)
def test_of_few_candidates_the_cover_is_the_cheapest_there_is(
    owners: list[int], costs: list[int], request: Request
) -> None:
    """Of many on a host, of one on many, within caps, in slices; and the next best is within neither."""
    asked = candidates(owners, costs)
    covers = found(request, asked)
    assert (covers[0].cost if covers else None) == best(request, asked)
    if len(covers) > 1:
        assert not set(covers[0].victims) <= set(covers[1].victims)


@settings(max_examples=examples(40))
@given(owners=OWNERS, costs=COSTS, request=REQUESTS | SLICED)
def test_of_more_candidates_than_can_be_searched_the_cover_suffices_and_is_no_dearer_than_the_greedy_one(
    owners: list[int], costs: list[int], request: Request
) -> None:
    asked = candidates(owners, costs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_sets.Domain, "cheapest", lambda _, known: list(known))
        greedy = found(request, asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_sets, "MAX_FREE", 4)
        patch.setattr(exact_sets, "MAX_SWAPPED", 4)
        covers = found(request, asked)
    assert covers or not greedy
    for cover in covers:
        state = full_fleet()
        state.give(np.flatnonzero(np.isin(asked.owner, cover.victims)))
        assert most_nodes(state, request) >= request.nodes
    least = best(request, asked)
    assert not covers or least is not None
    if greedy and least is not None:
        assert least <= covers[0].cost <= greedy[0].cost


@settings(max_examples=examples(150))
@given(owners=OWNERS, costs=COSTS, request=REQUESTS | SLICED)
def test_domains_that_are_left_out_hold_neither_the_best_nor_the_next_best(
    owners: list[int], costs: list[int], request: Request
) -> None:
    asked = candidates(owners, costs)
    pruned = found(request, asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victims, "_least_costs", lambda *counted: np.zeros(len(counted[2])))
        whole = found(request, asked)
    assert [cover.cost for cover in pruned[:2]] == [cover.cost for cover in whole[:2]]
    assert len(pruned) <= len(whole)


@settings(max_examples=examples(100))
@given(owners=OWNERS, costs=COSTS, request=REQUESTS | SLICED)
def test_what_is_not_dispensable_cannot_be_left_out(owners: list[int], costs: list[int], request: Request) -> None:
    asked, state = candidates(owners, costs), full_fleet()
    covers = cheapest_covers(state, request, asked)
    if not covers:
        return
    given_by = {victim: np.flatnonzero(asked.owner == victim) for victim in covers[0].victims}
    state.give(np.concatenate(list(given_by.values())))
    slices = request.rule.slices
    trials = dispensable(state, request, given_by, slices[-1] if slices else None)
    assert trials <= dispensable(state, request, given_by)
    for victim, gpus in given_by.items():
        state.take(gpus)
        assert (most_nodes(state, request) >= request.nodes) == (victim in trials)
        state.give(gpus)


@settings(max_examples=examples(60))
@given(owners=OWNERS, costs=COSTS, size=st.sampled_from([2, 4, 8]))
def test_a_cell_is_priced_by_victims_what_complete_it(owners: list[int], costs: list[int], size: int) -> None:
    """Some attempts of the host suffice together, and none of them costs more than one that suffices alone."""
    asked, state = candidates(owners, costs), full_fleet()
    shares = shares_of(state, asked.owner, len(costs))
    prices = victims._prices(shares, asked, np.full(state.layout.num_cells, size), most=1)
    for cell, price in enumerate(prices.tolist()):
        holders = shares.of_cell(cell)
        enough = [
            sum(costs[victim] for victim, _ in some)
            for number in range(1, len(holders) + 1)
            for some in combinations(holders, number)
            if sum(gain for _, gain in some) >= size
        ]
        alone = [costs[victim] for victim, gain in holders if gain >= size]
        assert price in enough or not enough
        assert price <= min(alone, default=np.inf)


def test_slices_are_chosen_again_where_a_cap_spares_what_would_have_to_give() -> None:
    """The cheapest host has two of one tenant, which may not lose both: the others of its rack make the slice."""
    asked = VictimCandidates(
        np.repeat([0, 1, 2, 3, 4, -1], [4, 4, 8, 8, 8, 64]),
        np.array([1.0, 1.0, 9.0, 2.0, 9.0]),
        [4, 4, 8, 8, 8],
        [0, 0, 1, 1, 1],
        {0: 4.0, 1: 96.0},
    )
    sliced = Request("reserved", nodes=2, gpus_per_node=8, rule=PlacementRule(slices=(Slice("rack", 2),)))
    assert found(sliced, asked)[0] == VictimSet(11.0, (2, 3))


WEAK = st.lists(st.sampled_from([0, 0, 200, 10_000]), min_size=12, max_size=12)


@settings(max_examples=examples(60))
@given(owners=OWNERS, costs=COSTS, weak=WEAK, request=REQUESTS)
def test_what_the_gang_is_expected_to_lose_on_weak_hosts_decides_between_victims_what_lose_the_same(
    owners: list[int], costs: list[int], weak: list[int], request: Request
) -> None:
    """Failures in a million hours of each GPU of a host, over a week, each of which costs the gang a restart."""
    asked = replace(candidates(owners, costs), costs=np.array(costs) * 200.0)
    gpus = [replace(view, health_cost=weak[number // 8]) for number, view in enumerate(full_gpus())]
    state, week = FleetState(gpus, DEFAULT_POLICY), replace(request, expected_s=604_800.0)
    restart_gpu_s = request.nodes * request.gpus_per_node * DEFAULT_POLICY.reclaim.restart_cost_s
    loss_of = np.array(weak) * request.gpus_per_node * 168 / 1e6 * restart_gpu_s * victims.LOSS_WEIGHT
    least = np.inf
    for some in (some for number in range(1, 11) for some in combinations(range(10), number)):
        lost = [sum(asked.num_gpus[victim] for victim in some if victim % 3 == tenant) for tenant in ALLOWANCE]
        fits = np.bincount(np.arange(96)[np.isin(asked.owner, some)] // 8, minlength=12) >= request.gpus_per_node
        losses = [sorted(loss_of[rack][fits[rack]])[: request.nodes] for rack in RACKS_OF[request.required]]
        sums = [sum(own) for own in losses if len(own) == request.nodes]
        if sums and all(number <= ALLOWANCE[tenant] for tenant, number in enumerate(lost)):
            least = min(least, min(sums) + sum(200 * costs[victim] for victim in some))
    covers = cheapest_covers(state, week, asked)
    assert (covers[0].weighed if covers else np.inf) == pytest.approx(least, rel=1e-12)
    if covers:
        assert covers[0].cost == pytest.approx(round(least / 200) * 200), "no victim that loses more is chosen instead"


def test_of_hosts_for_the_same_cost_the_sound_one_is_freed_but_for_a_job_that_prefers_weak_ones() -> None:
    gpus = [replace(view, health_cost=10_000 if number < 8 else 0) for number, view in enumerate(full_gpus())]
    state, owner = FleetState(gpus, DEFAULT_POLICY), np.repeat([0, 1, -1], [8, 8, 80])
    asked = VictimCandidates(owner, np.array([9.0, 9.0]), [8, 8], [0, 0], {0: 96.0})
    request = Request("reserved", nodes=1, gpus_per_node=8)
    assert [cover.victims for cover in cheapest_covers(state, request, asked)] == [(1,), (0,)]
    weak = replace(request, prefers_weak=True)
    assert [cover.victims for cover in cheapest_covers(state, weak, asked)] == [(0,), (1,)]


def test_of_many_candidates_all_are_found_where_all_are_needed() -> None:
    # 48 attempts, four a host. After the first of a host the others make it dearer, so hosts are read again.
    costs = [1 + 7 * victim % 60 for victim in range(48)]
    owner = np.arange(96, dtype=np.int64) // 2
    asked = VictimCandidates(owner, np.array(costs, dtype=np.float64), [2] * 48, [0] * 48, {0: 96.0})
    (cover,) = cheapest_covers(full_fleet(), Request(tier="reserved", nodes=12, gpus_per_node=8), asked)
    assert sorted(cover.victims) == list(range(48))


def test_of_many_equal_victims_a_sliced_gang_takes_the_ones_on_the_soundest_hosts() -> None:
    """More victims than an exact search tries, and all but one rack has weak GPUs."""
    names = [f"r{number}" for number in range(8)]
    gpus = [
        replace(view, health_cost=0 if view.node_id.startswith("r5") else 40_000)
        for view in racks({name: [0, 0] for name in names})
    ]
    owner = np.arange(len(gpus), dtype=np.int64) // 8
    number = len(gpus) // 8
    each = VictimCandidates(owner, np.ones(number), [8] * number, [0] * number, {0: 1_000.0})
    rule = PlacementRule(slices=(Slice("rack", 2),))
    request = Request("reserved", nodes=2, gpus_per_node=8, rule=rule, expected_s=864_000.0)
    best, *_ = cheapest_covers(FleetState(gpus, DEFAULT_POLICY), request, each)
    assert best.victims == (10, 11)
