"""What follows from a job's parallel layout: which ranks stand together, by the numbers that the program gives them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, NodeId
from muster.domain.job.placement_spec import NodeLabelRule, ParallelLayout, SliceRule, TopologyRule
from muster.domain.job.spec import Shape
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.placement import PlacementPolicy
from scheduler.model import GpuView, Parts, WaitingJob
from scheduler.planner import plan
from scheduler.solve.job_rules import faults_of, has_tp_across_nodes, rule_of
from scheduler.solve.placement_rule import PipelineOrder, Slice
from tests.scheduler.fleets import host, job, of_host, racks

LEVELS = ("pod", "rack")
TREE = PlacementPolicy(levels=LEVELS)
NVL72 = PlacementPolicy(levels=LEVELS, leaf_level="pod", nvlink_level="rack")


@dataclass(frozen=True)
class Requests:
    shape: Shape
    layout: ParallelLayout
    topology: TopologyRule = field(default_factory=TopologyRule)
    node_labels: NodeLabelRule = field(default_factory=NodeLabelRule)


def requests(nodes: int, gpus: int, slices: Sequence[tuple[str, int]] = (), **layout: int | bool) -> Requests:
    topology = TopologyRule(slices=tuple(SliceRule(level=level, ranks=ranks) for level, ranks in slices))
    return Requests(Shape(nodes=nodes, gpus_per_node=gpus), ParallelLayout.model_validate(layout), topology)


def waiting(spec: Requests, policy: PlacementPolicy = TREE) -> WaitingJob:
    return replace(job("j", nodes=spec.shape.nodes, gpus=spec.shape.gpus_per_node), rule=rule_of(spec, policy))


def hosts_of(gpus: list[GpuView], wanted: WaitingJob) -> list[str]:
    """By rank."""
    (placed,) = plan(gpus, [wanted], DEFAULT_POLICY, levels=LEVELS).placements
    return [node for node, _ in placed.parts]


def fleet(*sizes: int, width: int = 8) -> list[GpuView]:
    """A rack of idle hosts for each size, all in one pod; a host is ``<rack>h<number>``."""
    return [
        view
        for rack, size in enumerate(sizes)
        for number in range(size)
        for view in host(f"r{rack}h{number}", width, path=("p0", f"r{rack}"))
    ]


def test_a_pipelines_stages_stand_under_one_leaf_though_their_ranks_are_far_apart() -> None:
    """4 stages × 2 replicas of 8 ranks: node rank 2 × stage + replica."""
    spec = requests(8, 8, pp=4, dp=2, tp=8)
    found = hosts_of(fleet(6, 6), waiting(spec))
    assert {name[:2] for name in found[0::2]} == {"r0"}
    assert {name[:2] for name in found[1::2]} == {"r1"}
    assert sorted(found) == [f"r{rack}h{number}" for rack in range(2) for number in range(4)]


def test_where_no_leaf_holds_a_pipeline_the_ranks_that_shard_a_stage_stand_together() -> None:
    """2 stages × 2 replicas of 16 ranks: no rack has the 4 hosts of a replica, each has the 2 of a shard group."""
    spec = requests(8, 8, pp=2, dp=2, fsdp=2, tp=8)
    assert hosts_of(fleet(3, 3, 3, 3), waiting(spec)) == [f"r{rack}h{number}" for rack in range(4) for number in (0, 1)]
    found = hosts_of(fleet(5, 5), waiting(spec))
    assert [name[:2] for name in found] == ["r0", "r0", "r1", "r1"] * 2, "a leaf for each replica"
    assert len(hosts_of(fleet(1, 1, 1, 1, 1, 1, 1, 1), waiting(spec))) == 8, "and no job waits for a preference"


def test_replicas_that_share_a_host_stand_with_their_stages_together() -> None:
    """4 stages × 4 replicas of 4 ranks: two replicas of one stage a host."""
    spec = requests(8, 8, pp=4, dp=4, tp=4)
    (wish,) = rule_of(spec, TREE).preferred
    assert (wish.slices, wish.order) == ((Slice("rack", 4),), PipelineOrder(stages=4, hosts=1))
    assert [name[:2] for name in hosts_of(fleet(5, 5), waiting(spec))] == ["r0", "r1"] * 4


def test_slices_that_are_requested_by_rank_stay_runs_of_ranks() -> None:
    spec = requests(8, 8, slices=[("rack", 32)], pp=4, dp=2, tp=8)
    rule = rule_of(spec, TREE)
    assert (rule.slices, rule.preferred) == ((Slice("rack", 4),), ())
    assert [name[:2] for name in hosts_of(fleet(6, 6), waiting(spec))] == ["r0"] * 4 + ["r1"] * 4


def test_one_replica_or_one_stage_needs_no_other_order() -> None:
    assert rule_of(requests(8, 8, pp=8, tp=8), TREE).preferred == (), "the narrowest domain holds all that it can"
    (wish,) = rule_of(requests(8, 8, dp=2, fsdp=4, tp=8), TREE).preferred
    assert (wish.slices, wish.order) == ((Slice("rack", 4),), None)
    assert rule_of(requests(8, 8, pp=4, dp=2, tp=8), PlacementPolicy(levels=LEVELS, leaf_level=None)).preferred == ()


def test_a_tensor_parallel_group_over_hosts_stands_in_one_nvlink_domain_within_one_leaf() -> None:
    """NVL72: hosts of 4 GPUs, 18 a rack. tp 16 is four hosts of one rack, a replica of 2 stages is under one pod."""
    spec = requests(16, 4, pp=2, dp=2, tp=16)
    assert list(faults_of(spec, NVL72)) == []
    rule = rule_of(spec, NVL72)
    assert rule.slices == (Slice("rack", 4),)
    assert [one.slices for one in rule.preferred] == [(Slice("pod", 8), Slice("rack", 4))]
    found = hosts_of(fleet(6, 18, width=4), waiting(spec, NVL72))
    assert all(len({name[:2] for name in found[start : start + 4]}) == 1 for start in range(0, 16, 4))
    decided = plan(fleet(3, 3, 3, 3, 3, 3, width=4), [waiting(spec, NVL72)], DEFAULT_POLICY, levels=LEVELS)
    assert "each 4 hosts in one rack" in decided.waiting[0].why, "and it waits for that"


def test_one_that_may_span_domains_has_its_own_where_that_can_be_and_is_notified_of() -> None:
    spec = requests(8, 4, tp=16, dp=2, allow_tp_across_nodes=True)
    assert has_tp_across_nodes(spec)
    assert list(faults_of(spec, NVL72)) == []
    assert [name[:2] for name in hosts_of(fleet(6, 6, width=4), waiting(spec, NVL72))] == ["r0"] * 4 + ["r1"] * 4
    assert len(hosts_of(fleet(3, 3, 3, width=4), waiting(spec, NVL72))) == 8
    assert not has_tp_across_nodes(requests(2, 8, tp=8, dp=2, allow_tp_across_nodes=True))


@pytest.mark.parametrize(
    ("spec", "policy", "words"),
    [
        (requests(2, 8, tp=16), TREE, "take tp up to that, or set `allow_tp_across_nodes`"),
        (requests(3, 8, tp=3, dp=8), TREE, "take a tp that divides 8, or a multiple of it"),
        (requests(3, 8, tp=12, dp=2), NVL72, "take a multiple of 8"),
        (requests(4, 8, slices=[("rack", 24)], tp=8, dp=4), TREE, "32 ranks are no multiple of 24"),
        (requests(12, 4, slices=[("rack", 24)], tp=16, dp=3), NVL72, "let one be a multiple of the other"),
        (requests(2, 8, tp=8), TREE, "are 8 ranks; the shape has 16"),
    ],
)
def test_a_layout_that_no_wait_makes_right_is_refused_with_what_is_accepted(
    spec: Requests, policy: PlacementPolicy, words: str
) -> None:
    faults = list(faults_of(spec, policy))
    assert len(faults) == 1
    assert words in faults[0].detail


def test_what_an_even_spread_would_tear_apart_is_refused_or_not_preferred_for() -> None:
    spread = TopologyRule(balance="rack")
    wide = PlacementPolicy(levels=LEVELS, leaf_level="pod", nvlink_level="pod")
    spec = replace(requests(8, 4, tp=8, fsdp=2, dp=2), topology=spread)
    assert [(one.pointer, one.code) for one in faults_of(spec, wide)] == [("/topology/balance", "within_slices")]
    sharded = replace(requests(8, 8, tp=8, fsdp=4, dp=2), topology=spread)
    assert rule_of(sharded, NVL72).preferred == ()
    assert [one.slices for one in rule_of(sharded, TREE).preferred] == [(Slice("rack", 4),)]


def kept(names: Sequence[str]) -> Parts:
    return tuple((NodeId(name), tuple(map(GpuUuid, of_host(name)))) for name in names)


def test_a_replacement_stands_with_its_own_replica() -> None:
    """Node ranks 0, 2 are the replica in rack 0, 1 and 3 that in rack 1; rank 2 is lost."""
    gpus = racks({"r0": [8, 0, 8], "r1": [8, 8, 8]}, pods={"r0": "p0", "r1": "p0"})
    wanted = replace(waiting(requests(4, 8, pp=2, dp=2, tp=8)), keep=kept(("r0h0", "r1h0", "r0h1", "r1h1")))
    assert hosts_of(gpus, wanted) == ["r0h0", "r1h0", "r0h2", "r1h1"]
    full = racks({"r0": [8, 0], "r1": [8, 8, 8]}, pods={"r0": "p0", "r1": "p0"})
    assert hosts_of(full, wanted) == ["r0h0", "r1h0", "r1h2", "r1h1"], "ranks are kept though no leaf holds it"


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_by_rank_stages_come_one_after_another_and_by_place_replicas(stages: int, replicas: int, hosts: int) -> None:
    order = PipelineOrder(stages, hosts)
    placed = list(product(range(replicas), range(stages), range(hosts)))
    ranked = order.by_rank(placed)
    assert list(ranked) == [
        (replica, stage, number) for stage in range(stages) for replica in range(replicas) for number in range(hosts)
    ]
    assert list(order.by_place(ranked)) == placed


@given(
    pp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 4]),
    fsdp=st.sampled_from([1, 2, 4]),
    tp=st.sampled_from([2, 4, 8]),
    sizes=st.lists(st.integers(1, 9), min_size=4, max_size=8),
)
def test_the_best_preference_that_the_racks_can_give_is_had_by_the_ranks_of_the_program(
    pp: int, dp: int, fsdp: int, tp: int, sizes: list[int]
) -> None:
    """By plain arithmetic on ranks as torch's device mesh numbers them: pp × dp × fsdp × tp, the last fastest."""
    num_ranks = pp * dp * fsdp * tp
    nodes = num_ranks // 8
    if num_ranks % 8 or nodes < 2 or nodes > sum(sizes):
        return
    names = hosts_of(fleet(*sizes), waiting(requests(nodes, 8, pp=pp, dp=dp, fsdp=fsdp, tp=tp)))
    assert len(set(names)) == nodes
    racks_of = {
        (p, d): {names[((p * dp + d) * fsdp * tp + rank) // 8][:2] for rank in range(fsdp * tp)}
        for p in range(pp)
        for d in range(dp)
    }
    replicas = [set().union(*(racks_of[p, d] for p in range(pp))) for d in range(dp)]
    hosts_of_stage = max(fsdp * tp // 8, 1)
    hosts_of_replica = pp * hosts_of_stage
    if nodes % hosts_of_replica == 0 and sum(size // hosts_of_replica for size in sizes) * hosts_of_replica >= nodes:
        assert all(len(found) == 1 for found in replicas)
    elif sum(size // hosts_of_stage for size in sizes) * hosts_of_stage >= nodes:
        assert all(len(found) == 1 for found in racks_of.values())
