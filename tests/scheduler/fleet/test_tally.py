"""The kept tallies say what a count over the whole fleet would say, whatever was taken, given or left out."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet import cell_counts
from scheduler.fleet.tally import Tally
from scheduler.fleet.topology import FleetState
from scheduler.solve.solver import Request, count_by_group, fitting_cells, most_nodes
from tests.scaled import examples
from tests.scheduler.fleets import host, racks

TIERS = ("spot", "on_demand")
FREE = st.lists(st.integers(0, 8), min_size=3, max_size=12)
STEPS = st.lists(st.tuples(st.lists(st.integers(0, 95), min_size=1, max_size=12), st.integers(1, 8)), max_size=12)


def fleet(free: list[int]) -> FleetState:
    """Three racks in two pods; of two hosts the rack is not known; two cohorts, and health that differs."""
    placed = racks({"r0": free[::3], "r1": free[1::3], "r2": free[2::3]}, pods={"r0": "p0", "r1": "p0", "r2": "p1"})
    mixed = [replace(gpu, cohort_key="b200" if gpu.slot_index % 3 else "h100") for number, gpu in enumerate(placed)]
    return FleetState([*mixed, *host("lost0", 8), *host("lost1", 3, path=("p0",))], DEFAULT_POLICY, ("pod", "rack"))


def assert_counted(state: FleetState, tally: Tally, tier: str, width: int) -> None:
    fresh = Tally(state.layout, state.recount(tier), width)
    assert (tally.usable == fresh.usable).all()
    for level in range(state.layout.node_level):
        assert (tally.num_cells(level) == fresh.num_cells(level)).all()
        assert (tally.num_gpus(level) == fresh.num_gpus(level)).all()


@settings(max_examples=examples(60))
@given(free=FREE, steps=STEPS)
def test_a_kept_tally_equals_a_fresh_one_after_any_take_and_give(free: list[int], steps: list) -> None:  # type: ignore[type-arg]
    state = fleet(free)
    for number, (picks, width) in enumerate(steps):
        gpus = np.unique([pick for pick in picks if pick < len(state.layout.uuids)]).astype(np.int64)
        state.take(gpus[state.is_free[gpus]])
        if number % 2:
            state.give(gpus[~state.is_free[gpus]])
        assert_counted(state, state.tally(TIERS[number % 2], width), TIERS[number % 2], width)


@settings(max_examples=examples(40))
@given(free=FREE, width=st.integers(1, 8), required=st.sampled_from([None, "pod", "rack"]), avoided=st.booleans())
def test_the_most_hosts_are_those_that_a_count_over_the_fleet_finds(
    free: list[int], width: int, required: str | None, *, avoided: bool
) -> None:
    state = fleet(free)
    avoid_nodes = frozenset({NodeId("r0h0"), NodeId("lost0"), NodeId("gone")}) if avoided else frozenset[NodeId]()
    request = Request("spot", 1, width, required=required, avoid_nodes=avoid_nodes)
    counted = most_nodes(state, request, state.recount("spot"))
    cells = fitting_cells(state, request, state.recount("spot"))
    level = 0 if required is None else state.layout.level(required)
    assert level is not None
    assert counted == count_by_group(state.layout, cells, level).max(initial=0) == most_nodes(state, request)


@settings(max_examples=examples(60))
@given(free=FREE, steps=STEPS, out=st.sets(st.integers(0, 13)))
def test_a_tally_without_cells_is_one_of_a_fleet_that_has_nothing_there(
    free: list[int], steps: list[tuple[list[int], int]], out: set[int]
) -> None:
    state = fleet(free)
    for picks, width in [([], 3), *steps]:
        gpus = np.unique([pick for pick in picks if pick < len(state.layout.uuids)]).astype(np.int64)
        state.take(gpus[state.is_free[gpus]])
        cells = np.array(sorted(cell for cell in out if cell < state.layout.num_cells), dtype=np.int64)
        counts = state.recount("on_demand")
        counts[cells] = 0
        left, fresh = state.tally("on_demand", width).without(cells), Tally(state.layout, counts, width)
        for level in range(state.layout.node_level):
            assert (left.num_cells(level) == fresh.num_cells(level)).all()
            assert (left.num_gpus(level) == fresh.num_gpus(level)).all()
            for group in range(state.layout.num_groups[level]):
                assert (left.cells_in(level, group) == fresh.cells_in(level, group)).all()
        assert (left.usable == fresh.usable).all()
        assert_counted(state, state.tally("on_demand", width), "on_demand", width)


@settings(max_examples=examples(40))
@given(free=FREE, steps=STEPS, idle=st.sets(st.integers(0, 95)))
def test_a_fork_counts_what_is_free_there_and_the_fleet_what_was_free_before(
    free: list[int], steps: list[tuple[list[int], int]], idle: set[int]
) -> None:
    state = fleet(free)
    state.tally("spot", 3)
    was_free = state.is_free.copy()
    is_free = was_free.copy()
    is_free[[gpu for gpu in idle if gpu < len(is_free)]] = True
    forked = state.fork(is_free, TIERS)
    for number, (picks, width) in enumerate(steps):
        gpus = np.unique([pick for pick in picks if pick < len(is_free)]).astype(np.int64)
        forked.take(gpus[forked.is_free[gpus]])
        assert_counted(forked, forked.tally(TIERS[number % 2], width), TIERS[number % 2], width)
    assert (state.is_free == was_free).all()
    for tier in TIERS:
        assert_counted(state, state.tally(tier, 3), tier, 3)


def test_a_tally_that_none_requested_in_many_changes_is_counted_again() -> None:
    state = fleet([8] * 6)
    state.tally("spot", 8)
    gpus = np.arange(8, dtype=np.int64)
    for _ in range(cell_counts.MAX_BEHIND):
        state.take(gpus)
        state.give(gpus)
    state.take(gpus)
    assert_counted(state, state.tally("spot", 8), "spot", 8)


def test_cells_of_a_group_are_those_that_fit_and_no_cell_of_another_cohort_between_them() -> None:
    state = fleet([8, 8, 8, 2, 8, 8])
    tally = state.tally("on_demand", 3)
    for level in range(state.layout.node_level + 1):
        for group in range(state.layout.num_groups[level]):
            fits = (state.layout.groups[level] == group) & (state.recount("on_demand") >= 3)
            assert tally.cells_in(level, group).tolist() == np.flatnonzero(fits).tolist()
