"""Properties of every plan, on random fleets, queues and workloads."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from health.standing.admission import AdmissionFacts, refusal_of
from muster.domain.ids import AttemptId, GpuUuid, JobId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Contact, Standing
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, Plan, RunningAttempt, StandingReclaim, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.reclaim.caps import allowances
from scheduler.solve.solver import place, request_of
from tests.scaled import examples
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, host

LEVELS = ("pod", "rack")
TIERS = ("reserved", "reserved", "on_demand", "spot")
FACTS = st.builds(
    AdmissionFacts,
    standing=st.sampled_from([Standing.HEALTHY] * 9 + [Standing.PROBATION, Standing.SUSPECT]),
    contact=st.sampled_from([Contact.LIVE] * 9 + [Contact.SILENT]),
    is_cordoned=st.sampled_from([False] * 9 + [True]),
)


@dataclass(frozen=True)
class World:
    gpus: list[GpuView]
    queue: list[WaitingJob]
    workload: Workload

    def plan(self) -> Plan:
        return plan(self.gpus, self.queue, DEFAULT_POLICY, self.workload, levels=LEVELS)

    def state(self) -> FleetState:
        return FleetState(self.gpus, DEFAULT_POLICY, LEVELS)


@st.composite
def fleets(draw: st.DrawFn) -> list[GpuView]:
    gpus: list[GpuView] = []
    for number in range(draw(st.integers(1, 8))):
        path = draw(st.sampled_from([("p0", "r0"), ("p0", "r1"), ("p1", "r0"), ("p1", "r2"), ("p1", ""), ()]))
        cohort = draw(st.sampled_from(["h100", "h100", "a100"]))
        facts, cost = draw(FACTS), draw(st.integers(0, 3))
        gpus += host(f"n{number}", 4, cohort=cohort, facts=facts, path=path, health_cost=cost)
    return gpus


@st.composite
def worlds(draw: st.DrawFn) -> World:
    gpus = draw(fleets())
    rest = [gpu.uuid for gpu in gpus]
    attempts: list[RunningAttempt] = []
    while rest:
        size, gap = draw(st.integers(1, 8)), draw(st.sampled_from([0, 0, 0, 1, 4]))
        part, rest = rest[:size], rest[size + gap :]
        attempts.append(
            RunningAttempt(
                AttemptId(f"a{len(attempts)}"),
                JobId(f"r{len(attempts)}"),
                TenantId(draw(st.sampled_from("tu"))),
                draw(st.sampled_from(["spot"] * 4 + ["on_demand"])),
                tuple(part),
                NOW_MS - draw(st.sampled_from([10, 45, 60, 90])) * MINUTE_MS,
                draw(st.none() | st.just(NOW_MS - 5 * MINUTE_MS)),
                draw(st.sampled_from([None, None, NOW_MS + MINUTE_MS, NOW_MS + 60 * MINUTE_MS])),
            )
        )
    queue = [
        WaitingJob(
            JobId(f"j{number}"),
            1,
            draw(st.sampled_from(TIERS)),
            draw(st.integers(0, 5)),
            nodes := draw(st.integers(1, 3)),
            draw(st.integers(1, 4)),
            min_nodes=draw(st.none() | st.integers(1, nodes)),
            max_nodes=draw(st.none() | st.integers(nodes, 4)),
            required_level=draw(st.sampled_from([None, None, "rack", "pod"])),
            preferred_level=draw(st.sampled_from([None, "rack"])),
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    peaks = {TenantId("t"): draw(st.sampled_from([0, 256])), TenantId("u"): draw(st.sampled_from([0, 256]))}
    held = hold(gpus, [uuid for attempt in attempts for uuid in attempt.gpus])
    return World(held, queue, Workload(NOW_MS, tuple(attempts), peak_gpus=peaks))


@settings(max_examples=examples(200))
@given(worlds())
def test_every_plan_keeps_the_invariants_of_placement(world: World) -> None:
    decided = world.plan()
    by_uuid = {gpu.uuid: gpu for gpu in world.gpus}
    by_job = {job.job_id: job for job in world.queue}
    answered = [item.job_id for item in decided.placements] + [item.job_id for item in decided.waiting]
    assert sorted(answered) == sorted(by_job), "everybody is answered once"
    taken = [uuid for placement in decided.placements for _, uuids in placement.parts for uuid in uuids]
    promised = {uuid for reclaim in decided.reclaims for uuid in reclaim.hold}
    assert len(taken) == len(set(taken)), "I1"
    assert not promised & set(taken), "what is reclaimed for one job is given to no other"
    for placement in decided.placements:
        wanted = by_job[placement.job_id]
        num_nodes = len({node for node, _ in placement.parts})
        assert [len(uuids) for _, uuids in placement.parts] == [wanted.gpus_per_node] * num_nodes, "I5"
        assert wanted.fewest_nodes <= num_nodes <= wanted.most_nodes, "I5"
        views = [by_uuid[uuid] for _, uuids in placement.parts for uuid in uuids]
        assert len({view.cohort_key for view in views}) == 1, "I4"
        assert all(refusal_of(view.facts, DEFAULT_POLICY.tier(wanted.tier)) is None for view in views), "I3"
        if wanted.required_level is not None:
            depth = LEVELS.index(wanted.required_level) + 1
            homes = {view.path[:depth] for view in views}
            assert len(homes) == 1, "the required level holds"
            assert all(len(home) == depth and home[-1] for home in homes), "and its domain is known"


@settings(max_examples=examples(200))
@given(worlds())
def test_every_reclaim_keeps_the_contract(world: World) -> None:
    decided = world.plan()
    attempts = {attempt.attempt_id: attempt for attempt in world.workload.running}
    by_job = {job.job_id: job for job in world.queue}
    allowance = allowances(world.workload, DEFAULT_POLICY, ())
    lost = Counter[TenantId]()
    assert len({reclaim.victim for reclaim in decided.reclaims}) == len(decided.reclaims), "no victim gets two notices"
    for reclaim in decided.reclaims:
        victim, beneficiary = attempts[reclaim.victim], by_job[reclaim.beneficiary]
        tier = DEFAULT_POLICY.tier(victim.tier)
        assert tier.notice_s is not None, "I7"
        assert reclaim.notice_s == tier.notice_s
        assert tier.priority < DEFAULT_POLICY.tier(beneficiary.tier).priority
        assert NOW_MS - victim.started_ms >= tier.min_run_s * 1000, "I9"
        assert set(reclaim.gpus) == set(victim.gpus)
        assert set(reclaim.hold) & set(victim.gpus), "each victim is needed"
        lost[victim.tenant_id] += len(victim.gpus)
    assert all(number <= allowance[tenant] for tenant, number in lost.items()), "I9"


@settings(max_examples=examples(200))
@given(worlds())
def test_nothing_is_evicted_unless_it_suffices_and_none_could_be_spared(world: World) -> None:
    world = replace(world, queue=[replace(world.queue[0], tier="reserved")])
    decided = world.plan()
    if not decided.reclaims:
        return
    request = request_of(world.queue[0]).at_least()
    soon_ms = NOW_MS + 120_000
    ending = [a for a in world.workload.running if a.ends_ms is not None and a.ends_ms <= soon_ms]
    attempts = {attempt.attempt_id: attempt for attempt in world.workload.running}
    chosen = [attempts[reclaim.victim] for reclaim in decided.reclaims]
    assert fits(world, [*ending, *chosen])
    assert not fits(world, ending), "GPUs that become free by themselves are waited for"
    reached = with_level_reached(world, decided)
    assert fits(reached, [*ending, *chosen])
    for victim in chosen:
        assert not fits(reached, [*ending, *(other for other in chosen if other is not victim)])
    assert request.nodes * request.gpus_per_node == len(decided.reclaims[0].hold)


def with_level_reached(world: World, decided: Plan) -> World:
    """Where the first job prefers a level, it requires the narrowest from there on of which one domain has its place.

    For that one its victims were chosen; a wider one would do with fewer.
    """
    first, by_uuid = world.queue[0], {gpu.uuid: gpu for gpu in world.gpus}
    if first.preferred_level is None or not decided.reclaims or first.nodes == 1:
        return world
    paths = [by_uuid[uuid].path for uuid in decided.reclaims[0].hold]
    for depth in range(LEVELS.index(first.preferred_level) + 1, 0, -1):
        homes = {path[:depth] for path in paths}
        if len(homes) == 1 and all(len(home) == depth and home[-1] for home in homes):
            return replace(world, queue=[replace(first, required_level=LEVELS[depth - 1]), *world.queue[1:]])
    return world


def fits(world: World, gone: list[RunningAttempt]) -> bool:
    state = world.state()
    state.give(state.layout.gpu_indices(uuid for attempt in gone for uuid in attempt.gpus))
    return place(state, request_of(world.queue[0]).at_least()) is not None


@settings(max_examples=examples(120))
@given(worlds())
def test_on_small_fleets_the_victims_cost_no_more_than_the_best_there_are(world: World) -> None:
    first = replace(world.queue[0], tier="reserved", preferred_level=None)
    running = tuple(replace(attempt, ends_ms=None) for attempt in world.workload.running)
    peaks = dict.fromkeys(map(TenantId, "tu"), 10_000)
    world = replace(world, queue=[first], workload=replace(world.workload, running=running, peak_gpus=peaks))
    if fits(world, []):
        return
    spot = DEFAULT_POLICY.tier("spot")
    able = [a for a in running if a.tier == "spot" and NOW_MS - a.started_ms >= spot.min_run_s * 1000]
    sets = [list(chosen) for size in range(1, len(able) + 1) for chosen in combinations(able, size)]
    best = min((sum(map(cost, chosen)) for chosen in sets if fits(world, chosen)), default=None)
    decided = world.plan()
    assert bool(decided.reclaims) == (best is not None), "a set that suffices is found where there is one"
    if best is not None:
        assert sum(reclaim.cost_gpu_s for reclaim in decided.reclaims) == pytest.approx(best)


def cost(attempt: RunningAttempt) -> float:
    since_ms = NOW_MS - (attempt.saved_ms or attempt.started_ms)
    return len(attempt.gpus) * (since_ms / 1000 + DEFAULT_POLICY.reclaim.restart_cost_s)


@settings(max_examples=examples(120))
@given(worlds())
def test_the_order_of_the_rows_decides_nothing(world: World) -> None:
    decided = world.plan()
    shuffled = replace(
        world,
        gpus=world.gpus[::-1],
        queue=world.queue[::-1],
        workload=replace(world.workload, running=world.workload.running[::-1]),
    )
    assert shuffled.plan() == decided, "I19"


@settings(max_examples=examples(200))
@given(worlds())
def test_a_second_cycle_neither_withdraws_nor_doubles_what_the_first_began(world: World) -> None:
    first = world.plan()
    placed = {placement.job_id for placement in first.placements}
    taken = [uuid for placement in first.placements for _, uuids in placement.parts for uuid in uuids]
    reclaims = tuple(
        StandingReclaim(item.victim, item.beneficiary, NOW_MS + int(item.notice_s * 1000), item.hold)
        for item in first.reclaims
    )
    second = replace(
        world,
        gpus=hold(world.gpus, taken),
        queue=[job for job in world.queue if job.job_id not in placed],
        workload=replace(world.workload, reclaims=reclaims),
    ).plan()
    assert second.withdrawals == ()
    assert not {item.victim for item in second.reclaims} & {item.victim for item in first.reclaims}
    assert not {item.beneficiary for item in second.reclaims} & {item.beneficiary for item in first.reclaims}


@settings(max_examples=examples(200))
@given(worlds())
def test_once_the_victims_have_let_go_the_beneficiary_runs(world: World) -> None:
    first = world.plan()
    reclaims = tuple(StandingReclaim(item.victim, item.beneficiary, NOW_MS, item.hold) for item in first.reclaims)
    gone = {item.victim for item in first.reclaims}
    soon_ms = NOW_MS + 120_000
    left = tuple(
        attempt
        for attempt in world.workload.running
        if attempt.attempt_id not in gone and (attempt.ends_ms is None or attempt.ends_ms > soon_ms)
    )
    still_held: set[GpuUuid] = {uuid for attempt in left for uuid in attempt.gpus}
    free = [replace(gpu, facts=replace(gpu.facts, is_assigned=gpu.uuid in still_held)) for gpu in world.gpus]
    workload = replace(world.workload, running=left, reclaims=reclaims, now_ms=soon_ms)
    second = replace(world, gpus=free, workload=workload).plan()
    assert {item.beneficiary for item in first.reclaims} <= {placement.job_id for placement in second.placements}
