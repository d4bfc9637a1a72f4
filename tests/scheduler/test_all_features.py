"""P1, P2, P3, P5 and P6 where all comes together: slices, labels, elastic gangs that run or wait, holds, reclaims."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, NodeId
from scheduler.model import ElasticGang, GpuView, Parts, Plan, ResumeHold, RunningAttempt, WaitingJob
from scheduler.solve.placement_rule import LabelRule, PlacementRule, Slice
from tests.scaled import examples
from tests.scheduler.test_plan_properties import LEVELS, World, worlds
from tests.scheduler.test_ten_properties import after, victims_under_contract

MANY = settings(max_examples=examples(60))
ZONES = ("east", "west")
HOMES = [("p0", "r0"), ("p0", "r0"), ("p0", "r1"), None]
"""Most nodes stand close together, so that slices are available; None: where the world has it."""
EAST = LabelRule(required=(("zone", frozenset({"east"})),))
NOT_WEST = LabelRule(forbidden=(("zone", frozenset({"west"})),))
RULES = [
    PlacementRule(),
    PlacementRule(labels=EAST),
    PlacementRule(labels=NOT_WEST),
    PlacementRule(slices=(Slice("rack", 2),)),
    PlacementRule(slices=(Slice("pod", 2), Slice("rack", 1))),
    PlacementRule(slices=(Slice("rack", 2),), labels=NOT_WEST),
]


@st.composite
def full_worlds(draw: st.DrawFn) -> World:
    """A world of ``worlds`` in which nodes have zones, jobs ask for more, gangs may change size, and GPUs are held."""
    world = draw(worlds())
    nodes = dict.fromkeys(gpu.node_id for gpu in world.gpus)
    zones = {node: draw(st.sampled_from(ZONES)) for node in nodes}
    homes = {node: draw(st.sampled_from(HOMES)) for node in nodes}
    stay = [one for one in world.workload.running if draw(st.booleans())]
    left = {uuid for one in world.workload.running if one not in stay for uuid in one.gpus}
    gpus = [
        replace(
            gpu,
            labels=(("zone", zones[gpu.node_id]),),
            path=homes[gpu.node_id] or gpu.path,
            facts=replace(gpu.facts, is_assigned=gpu.facts.is_assigned and gpu.uuid not in left),
        )
        for gpu in world.gpus
    ]
    queue = [requesting(one, draw(st.sampled_from(RULES))) for one in world.queue]
    running = [elastic(one, gpus) if draw(st.booleans()) else one for one in stay]
    free = [gpu.uuid for gpu in gpus if not gpu.facts.is_assigned]
    num_held = draw(st.integers(0, min(4, len(free))))
    holds = (ResumeHold(queue[0].job_id, tuple(sorted(free[:num_held]))),) if num_held else ()
    return World(gpus, queue, replace(world.workload, running=tuple(running), holds=holds))


def requesting(one: WaitingJob, rule: PlacementRule) -> WaitingJob:
    """Its hosts are a multiple of what a slice takes."""
    nodes = -(-one.nodes // rule.step) * rule.step
    return (
        replace(one, rule=rule, nodes=nodes, min_nodes=None, max_nodes=None) if rule.slices else replace(one, rule=rule)
    )


def elastic(one: RunningAttempt, gpus: Sequence[GpuView]) -> RunningAttempt:
    """Where it has as many GPUs of each of its hosts, it may continue with one of them, or with one more."""
    parts = parts_of(one.gpus, gpus)
    sizes = {len(part) for _, part in parts}
    if len(sizes) > 1:
        return one
    return replace(one, elastic=ElasticGang(parts, 1, len(parts) + 1, sizes.pop()))


def parts_of(uuids: Sequence[GpuUuid], gpus: Sequence[GpuView]) -> Parts:
    node_of = {gpu.uuid: gpu.node_id for gpu in gpus}
    nodes: dict[NodeId, list[GpuUuid]] = {}
    for uuid in uuids:
        nodes.setdefault(node_of[uuid], []).append(uuid)
    return tuple((node, tuple(part)) for node, part in nodes.items())


def places(world: World, decided: Plan) -> list[tuple[WaitingJob, Parts]]:
    """Return placed GPUs, and GPUs held for beneficiaries of a reclaim."""
    jobs = {one.job_id: one for one in world.queue}
    given = [(jobs[item.job_id], item.parts) for item in decided.placements]
    promised = {one.beneficiary: one.hold for one in decided.reclaims}
    return given + [(jobs[job_id], parts_of(held, world.gpus)) for job_id, held in promised.items()]


@MANY
@given(full_worlds())
def test_p1_no_gpu_is_given_or_guaranteed_twice(world: World) -> None:
    decided = world.plan()
    found = [(one.job_id, uuid) for one, parts in places(world, decided) for _, part in parts for uuid in part]
    assert len({uuid for _, uuid in found}) == len(found)
    # A hold ends with its lapse, and with the placement of its job, which is committed before all later decisions.
    ended = {one.beneficiary for one in decided.lapses} | {one.job_id for one in decided.placements}
    kept = {uuid: one.job_id for one in world.workload.holds for uuid in one.gpus if one.job_id not in ended}
    assert all(kept.get(uuid, job_id) == job_id for job_id, uuid in found), "held GPUs are their job's alone"
    held = {gpu.uuid for gpu in world.gpus if gpu.facts.is_assigned}
    assert not held & {uuid for item in decided.placements for _, part in item.parts for uuid in part}
    for growth in decided.growths:
        wanted = {uuid for _, part in growth.parts for uuid in part}
        own = next(set(one.gpus) for one in world.workload.running if one.attempt_id == growth.attempt_id)
        assert len(own) < len(wanted)
        assert not (wanted - own) & (held | {uuid for _, uuid in found} | kept.keys())


@MANY
@given(full_worlds())
def test_p2_and_p3_a_place_is_whole_in_its_slices_by_its_labels_and_of_one_cohort(world: World) -> None:
    decided, by_uuid = world.plan(), {gpu.uuid: gpu for gpu in world.gpus}
    for one, parts in places(world, decided):
        assert one.fewest_nodes <= len(parts) <= one.most_nodes
        assert {len(part) for _, part in parts} == {one.gpus_per_node}
        views = [by_uuid[part[0]] for _, part in parts]
        assert len({view.cohort_key for view in views}) == 1
        assert all(one.rule.labels.admits(view.labels) for view in views)
        assert one.required_level is None or len(domains(views, one.required_level)) == 1
    for item in decided.placements:
        rule = next(one.rule for one in world.queue if one.job_id == item.job_id)
        views = [by_uuid[part[0]] for _, part in item.parts]
        for cut in rule.slices:
            for first in range(0, len(views), cut.nodes):
                assert len(domains(views[first : first + cut.nodes], cut.level)) == 1, "by rank, in one domain"


def domains(views: Sequence[GpuView], level: str) -> set[tuple[str, ...]]:
    found = {view.path[: LEVELS.index(level) + 1] for view in views}
    assert all(home and home[-1] for home in found), "an unknown place satisfies nothing"
    return found


@MANY
@given(full_worlds())
def test_p5_a_victim_gives_what_it_has_or_shrinks_to_whole_hosts_of_its_first(world: World) -> None:
    for reclaim, victim in victims_under_contract(world):
        assert {*reclaim.gpus, *reclaim.keeps} == set(victim.gpus)
        assert not set(reclaim.keeps) & {*reclaim.gpus, *reclaim.hold}
        if reclaim.keeps:
            assert victim.elastic is not None
            assert len(reclaim.keeps) >= victim.elastic.min_nodes * victim.elastic.gpus_per_node


@MANY
@given(full_worlds())
def test_p2_and_p6_the_same_rows_make_the_same_plan_and_what_is_stored_is_not_decided_again(world: World) -> None:
    decided = world.plan()
    assert world.plan() == decided, "a process that died before its commits is followed by one that decides the same"
    again = after(world, decided).plan()
    assert not {item.job_id for item in again.placements} & {item.job_id for item in decided.placements}
    assert not {one.victim for one in again.reclaims} & {one.victim for one in decided.reclaims}
