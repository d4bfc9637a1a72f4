"""Where a gang goes: the smallest domain that holds it whole, the least left over, ranks in topology order."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, WaitingJob
from scheduler.planner import plan
from scheduler.solve import solver
from scheduler.solve.solver import Request, parts_of, place
from tests.scaled import examples
from tests.scheduler.fleets import host, job, racks

PODS = {"r0": "p0", "r1": "p0", "r2": "p1", "r3": "p1"}
LEVELS = ("pod", "rack")


def nodes_of(gpus: list[GpuView], wanted: WaitingJob, *, levels: tuple[str, ...] = ("rack",)) -> list[str]:
    placements = plan(gpus, [wanted], DEFAULT_POLICY, levels=levels).placements
    return [node for node, _ in placements[0].parts] if placements else []


@pytest.mark.parametrize(
    ("nodes", "gpus", "chosen"),
    [
        (1, 2, "r2h2"),
        (1, 8, "r1h0"),
        (2, 8, "r2h0 r2h1"),
        (3, 8, "r1h0 r1h1 r1h2"),
        (5, 8, "r1h0 r1h1 r1h2 r2h0 r2h1"),
    ],
)
def test_the_example_that_opens_the_solver(nodes: int, gpus: int, chosen: str) -> None:
    fleet = racks({"r0": [8, 8, 8, 8], "r1": [8, 8, 8, 0], "r2": [8, 8, 2, 0]})
    assert nodes_of(fleet, job("j", nodes=nodes, gpus=gpus)) == chosen.split()
    assert re.search(f"{nodes} × {gpus} +{chosen}  ", solver.__doc__ or "")


def test_the_rack_with_exactly_enough_is_taken() -> None:
    gpus = racks({"r0": [8, 8, 8, 0], "r1": [8, 8, 0, 0], "r2": [8] * 4, "r3": [8] * 4})
    assert nodes_of(gpus, job("j", nodes=2, gpus=8, required="rack")) == ["r1h0", "r1h1"]


def test_without_any_preference_the_smallest_domain_that_fits_is_taken() -> None:
    gpus = racks({"r0": [8, 8, 8, 0], "r1": [8, 8, 0, 0], "r2": [8] * 4, "r3": [8] * 4})
    assert nodes_of(gpus, job("j", nodes=3, gpus=8)) == ["r0h0", "r0h1", "r0h2"]


def test_a_required_level_waits_rather_than_spread() -> None:
    gpus = racks({"r0": [8, 8, 8, 0], "r1": [8, 8, 0, 0]})
    assert nodes_of(gpus, job("j", nodes=4, gpus=8, required="rack")) == []


def test_a_preferred_level_falls_back_upward_to_the_fewest_domains() -> None:
    gpus = racks({"r0": [8, 8, 8, 0], "r1": [8, 8, 0, 0], "r2": [8, 0, 0, 0], "r3": [0] * 4}, pods=PODS)
    wanted = job("j", nodes=4, gpus=8, preferred="rack", required="pod")
    assert nodes_of(gpus, wanted, levels=LEVELS) == ["r0h0", "r0h1", "r0h2", "r1h0"]


def test_a_preferred_level_is_not_narrowed_when_it_fits_at_once() -> None:
    """In a pod that suffices, though a rack of another pod would hold the gang with less left over."""
    gpus = racks({"r0": [8, 8, 0, 0], "r1": [8, 0, 0, 0], "r2": [8, 8, 8, 0], "r3": [8, 0, 0, 0]}, pods=PODS)
    assert nodes_of(gpus, job("j", nodes=3, gpus=8, preferred="pod"), levels=LEVELS)[0].startswith(("r0", "r1"))


def test_a_gang_wider_than_any_domain_spans_the_fewest() -> None:
    gpus = racks({"r0": [8, 8, 0, 0], "r1": [8] * 4, "r2": [8, 8, 8, 0]})
    assert nodes_of(gpus, job("j", nodes=6, gpus=8)) == ["r0h0", "r0h1", *(f"r1h{n}" for n in range(4))]


def test_ranks_stand_in_topology_order() -> None:
    gpus = racks({"r1": [8, 8], "r0": [8, 8]})
    assert nodes_of(gpus, job("j", nodes=4, gpus=8)) == ["r0h0", "r0h1", "r1h0", "r1h1"]


def test_a_node_of_unknown_place_never_satisfies_a_required_level() -> None:
    gpus = [*host("lost", 8), *host("blank", 8, path=("",))]
    assert nodes_of(gpus, job("j", gpus=8, required="rack")) == []
    assert nodes_of(gpus, job("j", nodes=2, gpus=8)) == ["lost", "blank"]


def test_domains_are_reported_by_their_whole_path_and_never_by_a_prefix() -> None:
    gpus = [
        *host("a", 8, path=("pod-1", "rack-1")),
        *host("b", 8, path=("pod-1", "rack-10")),
        *host("c", 8, path=("pod-2", "rack-1")),
    ]
    assert nodes_of(gpus, job("j", nodes=2, gpus=8, required="rack"), levels=LEVELS) == []
    assert nodes_of(gpus, job("j", nodes=2, gpus=8, required="pod"), levels=LEVELS) == ["a", "b"]


def test_a_level_that_the_fleet_does_not_have_is_never_satisfied() -> None:
    assert nodes_of(racks({"r0": [8]}), job("j", required="nvlink_domain")) == []


def test_of_equal_racks_the_gang_takes_the_healthy_one_and_the_small_spot_job_the_weak_host() -> None:
    gpus = [
        *host("a0", 8, path=("a",), health_cost=40),
        *host("a1", 8, path=("a",)),
        *host("b0", 8, path=("b",)),
        *host("b1", 8, path=("b",)),
    ]
    assert nodes_of(gpus, job("gang", nodes=2, gpus=8)) == ["b0", "b1"]
    assert nodes_of(gpus, job("small", gpus=1, tier="spot")) == ["a0"]
    assert nodes_of(gpus, job("small", gpus=1)) != ["a0"]


def test_small_jobs_fill_the_fullest_rack_so_that_whole_racks_stay() -> None:
    gpus = racks({"r0": [8] * 4, "r1": [8, 8, 0, 0]})
    assert nodes_of(gpus, job("j", gpus=8)) == ["r1h0"]


def test_hosts_to_avoid_are_no_part_of_a_domain() -> None:
    wanted = replace(job("j", nodes=2, gpus=8, required="rack"), avoid_nodes=frozenset({NodeId("r0h0")}))
    assert nodes_of(racks({"r0": [8, 8], "r1": [8, 8, 8]}), wanted) == ["r1h0", "r1h1"]


def test_a_gang_never_mixes_the_cohorts_of_one_host() -> None:
    gpus = [
        *host("a", 4, cohort="x"),
        *[replace(gpu, uuid=GpuUuid(f"{gpu.uuid}y")) for gpu in host("a", 4, cohort="y")],
    ]
    assert nodes_of(gpus, job("j", gpus=8)) == []
    assert nodes_of(gpus, job("j", gpus=4)) == ["a"]


def test_ten_thousand_jobs_that_cannot_be_placed_do_not_hide_one_that_can() -> None:
    queue = [job(f"big{number:05}", nodes=2, gpus=8, at=number) for number in range(10_000)]
    decided = plan(racks({"r0": [8]}), [*queue, job("fits", gpus=8, at=99_999)], DEFAULT_POLICY)
    assert [placement.job_id for placement in decided.placements] == ["fits"]
    assert len(decided.waiting) == 10_000


@pytest.mark.parametrize("tier", ["on_demand", "spot"])
@settings(max_examples=examples(60))
@given(free=st.lists(st.integers(0, 8), min_size=1, max_size=12), picks=st.lists(st.integers(0, 95), max_size=40))
def test_the_kept_counts_equal_a_recount_after_any_take_and_give(tier: str, free: list[int], picks: list[int]) -> None:
    state = FleetState(racks({"r0": free[::2], "r1": free[1::2]}), DEFAULT_POLICY)
    state.tier(tier)
    gpus = np.unique([pick for pick in picks if pick < len(state.layout.uuids)]).astype(np.int64)
    before = state.tier(tier).counts.copy()
    free_now = gpus[state.is_free[gpus]]
    state.take(free_now)
    assert (state.tier(tier).counts == state.recount(tier)).all()
    state.give(free_now)
    assert (state.tier(tier).counts == before).all()


SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 8), st.sampled_from([None, "pod", "rack", "node"]))


@settings(max_examples=examples(200))
@given(
    free=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=4), min_size=4, max_size=4),
    shapes=st.lists(SHAPES, max_size=8),
)
def test_the_required_level_is_really_kept_and_a_gang_that_fits_is_placed(
    free: list[list[int]], shapes: list[tuple[int, int, str | None]]
) -> None:
    gpus = racks({f"r{number}": hosts for number, hosts in enumerate(free)}, pods=PODS)
    places = {gpu.node_id: gpu.path for gpu in gpus}
    for nodes, width, level in shapes:
        found = nodes_of(gpus, job("j", nodes=nodes, gpus=width, required=level), levels=LEVELS)
        depth = {None: 0, "pod": 1, "rack": 2, "node": 3}[level]
        homes: dict[tuple[str, ...], int] = {}
        for rack, hosts in enumerate(free):
            for number, num_free in enumerate(hosts):
                home = (PODS[f"r{rack}"], f"r{rack}", f"h{number}")[:depth]
                homes[home] = homes.get(home, 0) + (num_free >= width)
        assert bool(found) == (max(homes.values()) >= nodes)
        assert len({(*places[NodeId(node)], node)[:depth] for node in found}) <= 1


@given(free=st.lists(st.integers(0, 8), min_size=4, max_size=12), nodes=st.integers(1, 4), width=st.integers(1, 8))
def test_a_host_given_as_a_whole_is_named_as_one_given_in_part(free: list[int], nodes: int, width: int) -> None:
    state = FleetState(racks({"r0": free[::2], "r1": free[1::2]}), DEFAULT_POLICY)
    chosen = place(state, Request("on_demand", nodes, width))
    if chosen is None:
        return
    named = parts_of(state, "on_demand", chosen)
    assert chosen.is_whole == (width == 8)
    assert named == parts_of(state, "on_demand", replace(chosen, is_whole=False))
    assert [uuid for _, uuids in named for uuid in uuids] == [state.layout.uuids[gpu] for gpu in chosen.gpus]
    assert {len(uuids) for _, uuids in named} == {width}
