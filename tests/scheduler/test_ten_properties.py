"""P1 to P10: properties of a scheduler of gangs for any fleet, queue and running attempts, on random worlds.

The last one is compared with a search of all possible plans.
"""

from dataclasses import replace
from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import AttemptId, NodeId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.explain.advice import answer
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, Plan, Question, Reclaim, RunningAttempt, StandingReclaim, WaitingJob, Workload
from scheduler.planner import plan_on
from scheduler.solve.placement_rule import PlacementRule, Slice
from scheduler.solve.request import request_of
from scheduler.solve.solver import Chosen, place
from tests.scaled import examples
from tests.scheduler.fleets import NOW_MS, hold, host, job, running
from tests.scheduler.test_plan_properties import LEVELS, World, cost, fits, fleets, with_level_reached, worlds

MANY = settings(max_examples=examples(60))
GRACE_S = 30.0


def alone(world: World) -> World:
    """The first of the queue, which nothing but reserved jobs outrank."""
    return replace(world, queue=[replace(world.queue[0], tier="reserved")])


def end_ms(run_s: float | None) -> int | None:
    return None if run_s is None else NOW_MS + int(run_s * 1000)


def after(world: World, decided: Plan) -> World:
    """What a control plane has stored once it has carried the plan out, in the same moment: no notice is delivered."""
    jobs = {one.job_id: one for one in world.queue}
    begun = [
        RunningAttempt(
            AttemptId(f"of-{item.job_id}"),
            item.job_id,
            jobs[item.job_id].tenant_id,
            jobs[item.job_id].tier,
            tuple(uuid for _, uuids in item.parts for uuid in uuids),
            NOW_MS,
            ends_ms=end_ms(jobs[item.job_id].expected_s),
            predicted_ms=end_ms(jobs[item.job_id].predicted_s),
        )
        for item in decided.placements
    ]
    reclaims = tuple(
        StandingReclaim(one.victim, one.beneficiary, NOW_MS + int(one.notice_s * 1000), one.hold, one.keeps)
        for one in decided.reclaims
    )
    return replace(
        world,
        gpus=hold(world.gpus, [uuid for one in begun for uuid in one.gpus]),
        queue=[one for one in world.queue if one.job_id not in {item.job_id for item in decided.placements}],
        workload=replace(
            world.workload, running=(*world.workload.running, *begun), reclaims=(*world.workload.reclaims, *reclaims)
        ),
    )


@MANY
@given(worlds())
def test_p1_no_gpu_is_given_twice(world: World) -> None:
    decided = world.plan()
    given_out = [uuid for item in decided.placements for _, uuids in item.parts for uuid in uuids]
    held = {gpu.uuid for gpu in world.gpus if gpu.facts.is_assigned}
    promised = [uuid for one in {one.beneficiary: one for one in decided.reclaims}.values() for uuid in one.hold]
    assert len(set(given_out)) == len(given_out)
    assert not held & set(given_out)
    assert len(set(promised)) == len(promised), "nor held for two"
    assert not set(promised) & set(given_out)


@MANY
@given(worlds())
def test_p2_a_gang_has_all_or_nothing_also_when_the_plan_is_made_again(world: World) -> None:
    """A crash loses the plan, and what is made of the same rows is the same; what was stored is not made again."""
    decided = world.plan()
    jobs = {one.job_id: one for one in world.queue}
    for item in decided.placements:
        wanted = jobs[item.job_id]
        assert wanted.fewest_nodes <= len({node for node, _ in item.parts}) == len(item.parts) <= wanted.most_nodes
        assert {len(set(uuids)) for _, uuids in item.parts} == {wanted.gpus_per_node}
    for beneficiary, held in {one.beneficiary: one.hold for one in decided.reclaims}.items():
        assert len(held) == jobs[beneficiary].fewest_gpus, "a place is held whole"
    assert world.plan() == decided
    again = after(world, decided).plan()
    assert not {item.job_id for item in again.placements} & {item.job_id for item in decided.placements}


@MANY
@given(worlds())
def test_p3_the_required_level_and_one_cohort_hold_of_what_is_given_and_of_what_is_guaranteed(world: World) -> None:
    decided, by_uuid = world.plan(), {gpu.uuid: gpu for gpu in world.gpus}
    jobs = {one.job_id: one for one in world.queue}
    places = [(item.job_id, [uuid for _, uuids in item.parts for uuid in uuids]) for item in decided.placements]
    places += [(one.beneficiary, list(one.hold)) for one in decided.reclaims]
    places += [(one.job_id, list(one.gpus)) for one in decided.holds]
    for job_id, uuids in places:
        views = [by_uuid[uuid] for uuid in uuids]
        assert len({view.cohort_key for view in views}) == 1
        level = jobs[job_id].required_level
        if level is not None:
            depth = LEVELS.index(level) + 1
            homes = {view.path[:depth] for view in views}
            assert len(homes) == 1
            assert all(len(home) == depth and home[-1] for home in homes), "an unknown place satisfies nothing"


@MANY
@given(worlds())
def test_p4_no_victim_could_be_spared(world: World) -> None:
    """Without it the place would lie in no one domain of the level that was reached, where one is preferred."""
    one = alone(world)
    attempts, decided = {attempt.attempt_id: attempt for attempt in one.workload.running}, one.plan()
    chosen = [attempts[reclaim.victim] for reclaim in decided.reclaims]
    reached = with_level_reached(one, decided)
    for victim in chosen:
        assert not fits(reached, [other for other in chosen if other is not victim])


@MANY
@given(worlds())
def test_p5_a_victim_is_of_a_lower_tier_that_gives_back_and_has_had_its_least_time(world: World) -> None:
    victims_under_contract(world)


def victims_under_contract(world: World) -> list[tuple[Reclaim, RunningAttempt]]:
    """Each reclaim that is planned, and whose it is; all of them are asserted to be within the contract."""
    decided, jobs = world.plan(), {one.job_id: one for one in world.queue}
    attempts = {attempt.attempt_id: attempt for attempt in world.workload.running}
    for reclaim in decided.reclaims:
        victim, tier = attempts[reclaim.victim], DEFAULT_POLICY.tier(attempts[reclaim.victim].tier)
        assert tier.notice_s == reclaim.notice_s
        assert tier.priority < DEFAULT_POLICY.tier(jobs[reclaim.beneficiary].tier).priority
        assert NOW_MS - victim.started_ms >= tier.min_run_s * 1000
    return [(reclaim, attempts[reclaim.victim]) for reclaim in decided.reclaims]


@MANY
@given(worlds())
def test_p6_what_is_decided_stands_when_it_is_queried_again(world: World) -> None:
    stored = after(world, world.plan())
    again = stored.plan()
    assert (again.placements, again.reclaims, again.withdrawals, again.lapses) == ((), (), (), ())


@MANY
@given(worlds())
def test_p7_a_question_leaves_the_state_byte_for_byte(world: World) -> None:
    asked, state = Question(DEFAULT_POLICY, world.gpus, world.queue, world.workload), world.state()
    decided = plan_on(state, asked.queue, asked.policy, asked.workload)
    before = bytes_of(state)
    for one in asked.queue:
        if one.job_id in {waiting.job_id for waiting in decided.waiting}:
            answer(state, asked, decided, one, GRACE_S)
            assert bytes_of(state) == before
    for one in asked.queue:
        chosen = place(state, request_of(one))
        if chosen is not None:
            state.take(chosen.gpus)
            assert bytes_of(state) != before
            state.give(chosen.gpus)
            assert bytes_of(state) == before


def bytes_of(state: FleetState) -> list[bytes]:
    """What is free, by GPU, by tier and cell, and the counts that are kept of each number of GPUs a host."""
    found = [state.is_free.tobytes()]
    for name in sorted(DEFAULT_POLICY.tiers):
        own = state.for_tier(name)
        found.append(own.tier(name).counts.tobytes())
        for size in range(1, 5):
            tally = own.tally(name, size)
            found += [tally.num_cells(level).tobytes() for level in range(own.layout.node_level)]
    return found


@MANY
@given(worlds(), st.randoms(use_true_random=False))
def test_p8_the_names_of_the_nodes_change_no_objective(world: World, random: Random) -> None:
    one = alone(world)
    names = sorted({gpu.node_id for gpu in one.gpus})
    other = [NodeId(f"x{number}") for number in range(len(names))]
    random.shuffle(other)
    renamed = dict(zip(names, other, strict=True))
    relabelled = replace(one, gpus=[replace(gpu, node_id=renamed[gpu.node_id]) for gpu in one.gpus])
    assert objective(relabelled) == objective(one)


def objective(world: World) -> tuple[int, int, bool]:
    """Return placed jobs and GPUs, and whether an attempt is reclaimed."""
    decided = world.plan()
    num_gpus = sum(len(uuids) for item in decided.placements for _, uuids in item.parts)
    return len(decided.placements), num_gpus, bool(decided.reclaims)


@MANY
@given(worlds(), st.sampled_from([("p0", "r0"), ("p1", "r2"), ("p9", "r9"), ()]), st.sampled_from(["h100", "a100"]))
def test_p9_a_node_more_never_makes_what_fits_wait(world: World, path: tuple[str, ...], cohort: str) -> None:
    more = replace(world, gpus=[*world.gpus, *host("more", 4, cohort=cohort, path=path)])
    for one in world.queue:
        request = request_of(one).at_least()
        if place(world.state(), request) is not None:
            assert place(more.state(), request) is not None


@MANY
@given(
    free=st.lists(st.tuples(st.sampled_from(["A", "B", "C"]), st.integers(0, 4)), min_size=1, max_size=12),
    nodes=st.integers(1, 5),
    gpus=st.integers(1, 4),
    required=st.sampled_from([None, "pod", "rack"]),
)
def test_p10_of_twelve_nodes_the_place_is_the_narrowest_there_is_on_the_fewest_racks(
    free: list[tuple[str, int]], nodes: int, gpus: int, required: str | None
) -> None:
    """Racks A and B are of one pod, C of another."""
    pods, fleet = {"A": "p", "B": "p", "C": "q"}, list[GpuView]()
    for number, (rack, count) in enumerate(free):
        views = host(f"n{number:02}", 4, path=(pods[rack], rack))
        fleet += hold(views, [view.uuid for view in views[count:]])
    state, wanted = FleetState(fleet, DEFAULT_POLICY, LEVELS), job("j", nodes=nodes, gpus=gpus, required=required)
    chosen = place(state, request_of(wanted))
    able = [(pods[rack], rack) for rack, count in free if count >= gpus]
    least = {"rack": 1, "pod": 2, None: 3}[required]
    best = min((width(each) for each in combinations(able, nodes) if width(each) <= least), default=None)
    assert (chosen is not None) == (best is not None), "a place is found exactly where there is one"
    if chosen is not None:
        found = paths_of(state, fleet, chosen)
        assert width(found) == best
        if best == 2:
            inside = [path for path in able if path[0] == found[0][0]]
            fewest = min(len(set(each)) for each in combinations(inside, nodes))
            assert len(set(found)) == fewest


def width(paths: tuple[tuple[str, str], ...]) -> int:
    """1: in one rack; 2: in one pod; 3: wider."""
    if len(set(paths)) == 1:
        return 1
    return 2 if len({pod for pod, _ in paths}) == 1 else 3


def paths_of(state: FleetState, fleet: list[GpuView], chosen: Chosen) -> tuple[tuple[str, str], ...]:
    path_of = {gpu.node_id: (gpu.path[0], gpu.path[1]) for gpu in fleet}
    return tuple(path_of[state.layout.cell_node[cell]] for cell in chosen.cells.tolist())


HALVES = st.lists(st.tuples(st.integers(-2, 6), st.integers(-2, 6)), min_size=2, max_size=12)
"""The attempt on each half of a host: none, one that stays, or a gang, which may span several hosts."""
SLICES = st.sampled_from([(), (Slice("rack", 1),), (Slice("rack", 2),), (Slice("pod", 2), Slice("rack", 1))])


@MANY
@given(
    halves=HALVES,
    saved=st.lists(st.integers(0, 100), min_size=7, max_size=7),
    nodes=st.sampled_from([1, 2, 2, 4]),
    gpus=st.sampled_from([2, 4, 4]),
    required=st.sampled_from([None, None, "pod", "rack"]),
    slices=SLICES,
)
def test_p10_of_twelve_nodes_the_victims_are_the_cheapest_there_are(
    halves: list[tuple[int, int]],
    saved: list[int],
    nodes: int,
    gpus: int,
    required: str | None,
    slices: tuple[Slice, ...],
) -> None:
    """Two gangs on a host, one over several, of which the gang may need some alone; in slices too."""
    wanted = job("j", nodes=nodes, gpus=gpus, tier="reserved", required=required)
    in_slices = replace(wanted, rule=PlacementRule(slices=slices if nodes > 1 else ()))
    world = halved(halves, saved, in_slices)
    if fits(world, []):
        return
    spot = [one for one in world.workload.running if one.tier == "spot"]
    sets = [list(some) for size in range(1, len(spot) + 1) for some in combinations(spot, size)]
    best = next((some for some in sorted(sets, key=total_cost) if fits(world, some)), None)
    reclaims = world.plan().reclaims
    assert bool(reclaims) == (best is not None)
    if best is not None:
        assert sum(one.cost_gpu_s for one in reclaims) == total_cost(best)


def total_cost(some: list[RunningAttempt]) -> float:
    return sum(map(cost, some))


def halved(halves: list[tuple[int, int]], saved: list[int], wanted: WaitingJob) -> World:
    """Hosts of three racks in two pods, in turn; gangs are saved so many minutes ago."""
    gpus, held = list[GpuView](), dict[int, list[str]]()
    for number, both in enumerate(halves):
        views = host(f"n{number:02}", 4, path=(("p", "A"), ("p", "B"), ("q", "C"))[number % 3])
        gpus += views
        for half, owner in enumerate(both):
            held.setdefault(owner, []).extend(view.uuid for view in views[2 * half : 2 * half + 2])
    held.pop(-2, None)
    attempts = [
        running(f"g{owner}", uuids, tier="on_demand" if owner == -1 else "spot", saved_minutes=saved[owner])
        for owner, uuids in held.items()
    ]
    taken = hold(gpus, [uuid for one in attempts for uuid in one.gpus])
    return World(taken, [wanted], Workload(NOW_MS, tuple(attempts), peak_gpus={TenantId("owner"): 1000}))


@MANY
@given(worlds(), fleets())
def test_none_waits_without_a_reason_as_a_sentence_and_as_tokens(world: World, other: list[GpuView]) -> None:
    """Also on a fleet that is not the one on which the others run, and of a tier that the policy does not have."""
    strange: list[WaitingJob] = [*world.queue, replace(world.queue[0], job_id=job("s").job_id, tier="gone")]
    for one in (replace(world, queue=strange), World(other, strange, replace(world.workload, running=()))):
        for waiting in one.plan().waiting:
            told = [reason.token for reason in waiting.verdict.reasons]
            assert waiting.why
            assert waiting.verdict.binding in told
            assert len(set(told)) == len(told), "each once"
