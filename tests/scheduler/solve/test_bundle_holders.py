"""Nodes that hold a job's bundle are taken where nothing else decides, and change nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView
from scheduler.planner import plan
from scheduler.solve.health_cost import cell_costs
from scheduler.solve.solver import Chosen, Request, place
from tests.scaled import examples
from tests.scheduler.fleets import host, job, racks

LEVELS = ("rack",)


def nodes_of(gpus: list[GpuView], nodes: int, gpus_each: int, *holders: str) -> list[str]:
    wanted = replace(job("j", nodes=nodes, gpus=gpus_each), bundle_holders=frozenset(map(NodeId, holders)))
    [placement] = plan(gpus, [wanted], DEFAULT_POLICY, levels=LEVELS).placements
    return [node for node, _ in placement.parts]


def test_of_equal_hosts_one_that_holds_the_bundle_is_taken() -> None:
    fleet = racks({"r0": [8, 8, 8], "r1": [8, 8, 8]})
    assert nodes_of(fleet, 1, 8) == ["r0h0"]
    assert nodes_of(fleet, 1, 8, "r1h1") == ["r1h1"]
    assert nodes_of(fleet, 2, 8, "r1h1", "r1h2") == ["r1h1", "r1h2"]
    assert nodes_of(fleet, 2, 8, "r0h2") == ["r0h0", "r0h2"]
    assert nodes_of(fleet, 1, 8, "gone") == ["r0h0"]


@pytest.mark.parametrize("avoided", [(), ("r0h0",)])
def test_jobs_that_differ_by_their_bundles_alone_each_go_to_a_holder(avoided: tuple[str, ...]) -> None:
    fleet = racks({f"r{number}": [8] for number in range(4)})
    holders = {"a": "r2h0", "b": "r3h0", "c": "r1h0"}
    wanted = [
        replace(
            job(name, gpus=8),
            bundle_holders=frozenset({NodeId(node)}),
            avoid_nodes=frozenset(map(NodeId, avoided)),
        )
        for name, node in holders.items()
    ]
    placements = plan(fleet, wanted, DEFAULT_POLICY, levels=LEVELS).placements
    assert {str(one.job_id): one.parts[0][0] for one in placements} == holders


def test_a_host_with_less_left_over_or_a_sounder_one_comes_first() -> None:
    assert nodes_of(racks({"r0": [8, 8, 2]}), 1, 2, "r0h0") == ["r0h2"]
    weak = [*host("a", 8, path=("r0",), health_cost=50), *host("b", 8, path=("r0",))]
    assert nodes_of(weak, 1, 8, "a") == ["b"]


FLEETS = st.dictionaries(
    st.sampled_from(["r0", "r1", "r2"]), st.lists(st.integers(0, 8), min_size=1, max_size=4), min_size=1
)


def _score(state: FleetState, request: Request, chosen: Chosen) -> tuple[object, ...]:
    """All by which places are compared before the bundle: number of domains, unused GPUs, and health."""
    cells = chosen.cells
    racks_of = state.layout.groups[1][cells] if state.layout.node_level > 1 else np.zeros(len(cells))
    left = sorted((state.tier(request.tier).counts[cells] - request.gpus_per_node).tolist())
    sizes = sorted(np.unique(racks_of, return_counts=True)[1].tolist())
    return sizes, left, int(cell_costs(state, request, np.sort(cells)).sum())


@settings(max_examples=examples(200), deadline=None)
@given(
    free=FLEETS,
    costs=st.lists(st.sampled_from([0, 0, 0, 7]), min_size=12, max_size=12),
    nodes=st.integers(1, 4),
    width=st.sampled_from([1, 2, 8]),
    holders=st.frozensets(st.sampled_from([f"r{rack}h{number}" for rack in range(3) for number in range(4)])),
)
def test_no_other_criterion_is_overridden(
    free: dict[str, list[int]], costs: list[int], nodes: int, width: int, holders: frozenset[str]
) -> None:
    fleet = racks(free)
    names = sorted({gpu.node_id for gpu in fleet})
    fleet = [replace(gpu, health_cost=costs[names.index(gpu.node_id)]) for gpu in fleet]
    request = Request("on_demand", nodes, width)
    state = FleetState(fleet, DEFAULT_POLICY, LEVELS)
    without = place(state, request)
    holding = place(state, replace(request, bundle_holders=frozenset(map(NodeId, holders))))
    assert (without is None) == (holding is None)
    if without is None or holding is None:
        return
    own = state.for_tier(request.tier)
    assert _score(own, request, without) == _score(own, request, holding)
    in_order = place(state, replace(request, bundle_holders=frozenset(map(NodeId, holders))), in_order=True)
    plain = place(state, request, in_order=True)
    assert in_order is not None
    assert plain is not None
    assert in_order.cells.tolist() == plain.cells.tolist(), "what is guaranteed depends on no copy"
