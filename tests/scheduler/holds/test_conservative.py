"""Conservative backfill: each pending job has a place from a time on, and no job behind it moves that."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, JobId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.queue import QueuePolicy
from scheduler.explain.advice import answer
from scheduler.fleet.topology import NEVER_MS, FleetState
from scheduler.model import GpuView, Plan, Question, RunningAttempt, WaitingJob, Workload
from scheduler.planner import plan, plan_on
from scheduler.quota.tenancy import Quota, Tenancy
from scheduler.solve.placement_rule import PlacementRule, Slice
from scheduler.solve.request import Request
from scheduler.solve.solver import place
from tests.scaled import examples
from tests.scheduler import test_plan_properties
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, host, job, of_host, racks, running


def policy_of(rule: str = "conservative", **fields: object) -> Policy:
    queue = QueuePolicy.model_validate(
        {
            "backfill": rule,
            "ageing_exponent": 0,
            "host_share_exponent": 0,
            "starvation_s": 31_536_000.0,
            **fields,
        },
    )
    return DEFAULT_POLICY.model_copy(update={"queue": queue})


CONSERVATIVE = policy_of()
DAY_MS = 24 * 60 * MINUTE_MS


def decide(
    gpus: Sequence[GpuView],
    queue: Sequence[WaitingJob],
    attempts: Sequence[RunningAttempt],
    policy: Policy = CONSERVATIVE,
    **workload: object,
) -> Plan:
    return plan(list(gpus), list(queue), policy, replace(Workload(NOW_MS, tuple(attempts)), **workload))  # type: ignore[arg-type]


def waiting(name: str, place: int, *, nodes: int = 1, gpus: int = 8, wall: float | None = None) -> WaitingJob:
    """The ``place``-th in order, since each came two days after the last; with a wall time of ``wall`` minutes."""
    came = job(name, nodes=nodes, gpus=gpus, at=NOW_MS - (60 - 2 * place) * DAY_MS)
    return replace(came, expected_s=None if wall is None else wall * 60)


def busy(name: str, host_name: str, minutes: float | None) -> RunningAttempt:
    return running(name, of_host(host_name), tier="on_demand", ends_minutes=minutes)


def placed(decided: Plan) -> list[str]:
    return [item.job_id for item in decided.placements]


def starts(decided: Plan) -> dict[str, float]:
    """Of each that has a place, in how many minutes it begins."""
    return {held.job_id: (held.until_ms - NOW_MS) / MINUTE_MS for held in decided.holds}


def why(decided: Plan, name: str) -> str:
    return next(item.why for item in decided.waiting if item.job_id == name)


SIXTEEN = racks({"r0": [8] * 4 + [0] * 12})
TWELVE_FOR_AN_HOUR = [busy(f"a{n}", f"r0h{n}", 60) for n in range(4, 16)]


def test_what_is_gone_before_passes_and_what_is_not_follows() -> None:
    behind = [waiting("short", 1, nodes=2, wall=50), waiting("long", 2, nodes=2, wall=90)]
    decided = decide(SIXTEEN, [waiting("gang", 0, nodes=16, wall=60), *behind], TWELVE_FOR_AN_HOUR)
    assert (placed(decided), starts(decided)) == (["short"], {"gang": 60, "long": 120})
    assert "become free by 1970-01-01T18:40:00Z" in why(decided, "long")
    assert "after one job before it that will run there until then" in why(decided, "long")


def test_a_gang_makes_room_next_to_itself_where_it_starts_no_later() -> None:
    behind = [waiting("short", 1, nodes=2, wall=50), waiting("long", 2, nodes=2, wall=90)]
    decided = decide(SIXTEEN, [waiting("gang", 0, nodes=14, wall=60), *behind], TWELVE_FOR_AN_HOUR)
    assert (set(placed(decided)), starts(decided)) == ({"short", "long"}, {"gang": 60})
    (held,) = decided.holds
    taken = {uuid for item in decided.placements for _, uuids in item.parts for uuid in uuids}
    long = {uuid for item in decided.placements if item.job_id == "long" for _, uuids in item.parts for uuid in uuids}
    assert len(held.gpus) == 112
    assert not long & set(held.gpus)
    assert "0 of the 112 that it will start on are idle" in why(decided, "gang"), "its report has the new place"
    assert len(taken) == 32


TWO = racks({"r0": [8, 0]})


def test_what_a_gang_has_left_by_going_elsewhere_is_there_for_one_like_the_first() -> None:
    fleet = racks({"r0": [8, 0], "r1": [0, 0]})
    attempts = [busy(f"a{n}", name, 60) for n, name in enumerate(("r0h1", "r1h0", "r1h1"))]
    gang = replace(waiting("gang", 0, nodes=2, wall=30), required_level="rack")
    halves = [waiting("half", 1, gpus=4, wall=90), waiting("other-half", 2, gpus=4, wall=90)]
    decided = decide(fleet, [gang, *halves], attempts)
    assert (placed(decided), starts(decided)) == (["half", "other-half"], {"gang": 60})


def test_the_second_in_line_is_not_delayed_by_the_third() -> None:
    """One of four hosts is free, the others come in an hour; first needs 3 of them, second all, third one for long."""
    fleet, attempts = racks({"r0": [8, 0, 0, 0]}), [busy(f"a{n}", f"r0h{n}", 60) for n in range(1, 4)]
    queue = [
        waiting("first", 0, nodes=3, wall=30),
        waiting("second", 1, nodes=4, wall=60),
        waiting("third", 2, wall=180),
    ]
    decided = decide(fleet, queue, attempts)
    assert (placed(decided), starts(decided)) == ([], {"first": 60, "second": 90, "third": 150})
    easy = decide(fleet, queue, attempts, policy_of("easy"))
    assert (placed(easy), starts(easy)) == (["third"], {"first": 60}), "then second starts after three hours"


def test_of_one_whose_end_is_unknown_none_has_its_gpus_after_it() -> None:
    queue = [waiting("endless", 0, nodes=2), waiting("next", 1, nodes=2, wall=60), waiting("brief", 2, wall=60)]
    decided = decide(TWO, queue, [busy("a", "r0h1", 60)])
    assert (placed(decided), starts(decided)) == (["brief"], {"endless": 60})
    unknown = decide(TWO, queue, [busy("a", "r0h1", None)])
    assert starts(unknown) == {}, "its end is unknown"
    starving = decide(TWO, queue, [busy("a", "r0h1", None)], policy_of(starvation_s=3600.0))
    assert starts(starving) == {"endless": 120}, "the attempts have run so long already"


def test_a_place_is_searched_within_the_window_and_for_so_many() -> None:
    queue = [waiting(f"g{n}", n, nodes=2, wall=60) for n in range(5)]
    attempts = [busy("a", "r0h1", 60)]
    assert starts(decide(TWO, queue, attempts)) == {f"g{n}": 60 + 60 * n for n in range(5)}
    assert list(starts(decide(TWO, queue, attempts, policy_of(reservations_max=2)))) == ["g0", "g1"]
    within = policy_of(reservation_window_s=2 * 3600.0)
    assert list(starts(decide(TWO, queue, attempts, within))) == ["g0", "g1"]


def test_a_quota_lets_one_start_when_what_its_tenant_has_before_is_over() -> None:
    """Its tenant may have 16 GPUs and has 8. The first job starts in an hour; the second waits for another end."""
    fleet = racks({"r0": [0, 0, 0, 0]})
    own = replace(busy("a0", "r0h0", 300), tenant_id=TenantId("waiter"))
    attempts = [own, *(busy(f"a{n}", f"r0h{n}", 60) for n in range(1, 4))]
    queue = [waiting("first", 0, wall=30), waiting("second", 1, wall=30), waiting("third", 2, wall=30)]
    queue[2] = replace(queue[2], tenant_id=TenantId("other"))
    tenancy = Tenancy(quotas={(TenantId("waiter"), "on_demand"): Quota(guaranteed=0, borrowable=None, ceiling=16)})
    decided = decide(fleet, queue, attempts, tenancy=tenancy)
    assert starts(decided) == {"first": 60, "second": 90, "third": 60}


def test_a_start_does_not_use_up_the_quota_of_one_that_has_a_place() -> None:
    fleet = racks({"r0": [8, 0, 0]})
    attempts = [busy("a1", "r0h1", 60), busy("a2", "r0h2", 60)]
    queue = [waiting("first", 0, nodes=2, wall=30), waiting("second", 1, gpus=4, wall=120)]
    tenancy = Tenancy(quotas={(TenantId("waiter"), "on_demand"): Quota(guaranteed=0, borrowable=None, ceiling=16)})
    decided = decide(fleet, queue, attempts, tenancy=tenancy)
    assert (placed(decided), starts(decided)) == ([], {"first": 60, "second": 90})
    assert placed(decide(fleet, queue, attempts)) == ["second"], "without a quota it would be placed at once"


def test_none_is_reserved_on_what_closes_before_it_ends() -> None:
    closing = {gpu.node_id: NOW_MS + 100 * MINUTE_MS for gpu in host("r0h0", 1)}
    queue = [waiting("gang", 0, nodes=2, wall=30), waiting("late", 1, nodes=2, wall=30)]
    decided = decide(TWO, queue, [busy("a", "r0h1", 60)], maintenance_starts=closing)
    assert starts(decided) == {"gang": 60}, "the second would still run as the host closes"


def test_ten_thousand_that_wait_are_answered_and_the_first_have_places() -> None:
    queue = [replace(waiting(f"j{n:05}", 0, nodes=2, wall=10 + n % 7), queued_ms=n) for n in range(10_000)]
    decided = decide(TWO, queue, [busy("a", "r0h1", 60)], policy_of(reservations_max=8))
    assert (len(decided.waiting), len(decided.holds)) == (10_000, 8)


HOSTS = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([None, 5, 30, 60, 120])), min_size=2, max_size=6)
JOBS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from([1, 2, 4, 8, 8, 8]),
        st.sampled_from([None, 4, 29, 60, 61, 200]),
        st.sampled_from([None, None, "rack"]),
        st.sampled_from([None, None, 1]),
    ),
    min_size=1,
    max_size=7,
)


@dataclass(frozen=True)
class World:
    gpus: list[GpuView]
    queue: list[WaitingJob]
    attempts: list[RunningAttempt]
    now_ms: int = NOW_MS

    def plan(self, policy: Policy = CONSERVATIVE) -> Plan:
        return plan(self.gpus, self.queue, policy, Workload(self.now_ms, tuple(self.attempts)))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    hosts, size = draw(HOSTS), draw(st.integers(1, 3))
    gpus: list[GpuView] = []
    attempts = []
    for number, (free, ends) in enumerate(hosts):
        name = f"h{number}"
        cost = draw(st.sampled_from([0, 0, 0, 3000]))
        gpus += host(name, 8, path=(f"r{number // size}",), health_cost=cost)
        if free < 8:
            used = of_host(name, 8 - free, free)
            attempts.append(running(f"a{number}", used, tier="on_demand", minutes=45, ends_minutes=ends))
    queue = [
        replace(
            waiting(f"j{n}", n, nodes=nodes, gpus=each, wall=wall),
            required_level=level,
            min_nodes=fewest,
        )
        for n, (nodes, each, wall, level, fewest) in enumerate(draw(JOBS))
    ]
    return World(hold(gpus, [uuid for one in attempts for uuid in one.gpus]), queue, attempts)


Span = tuple[JobId, int, int, tuple[GpuUuid, ...]]


def spans(world: World, decided: Plan) -> list[Span]:
    """Yield each job's GPUs from when until when: running attempts, placements and holds."""
    jobs = {one.job_id: one for one in world.queue}

    def end_ms(name: JobId, start_ms: int) -> int:
        run_s = jobs[name].expected_run_s
        return NEVER_MS if run_s is None else start_ms + int(run_s * 1000)

    found: list[Span] = [(one.job_id, world.now_ms, one.ends_ms or NEVER_MS, one.gpus) for one in world.attempts]
    for item in decided.placements:
        uuids = tuple(uuid for _, part in item.parts for uuid in part)
        found.append((item.job_id, world.now_ms, end_ms(item.job_id, world.now_ms), uuids))
    found += [(one.job_id, one.until_ms, end_ms(one.job_id, one.until_ms), one.gpus) for one in decided.holds]
    return found


@settings(max_examples=examples(150))
@given(worlds())
def test_no_gpu_is_guaranteed_to_two_at_one_moment(world: World) -> None:
    decided = world.plan()
    found = spans(world, decided)
    for moment in {start_ms for _, start_ms, _, _ in found}:
        there = Counter(uuid for _, start, end, uuids in found if start <= moment < end for uuid in uuids)
        assert set(there.values()) <= {1}, moment
    assert world.plan() == decided, "I19"
    jobs = {one.job_id: one for one in world.queue}
    paths = {gpu.uuid: gpu.path for gpu in world.gpus}
    for held in decided.holds:
        wanted = jobs[held.job_id]
        assert wanted.fewest_gpus <= len(set(held.gpus)) == len(held.gpus) <= wanted.nodes * wanted.gpus_per_node
        assert wanted.required_level is None or len({paths[uuid] for uuid in held.gpus}) == 1


@settings(max_examples=examples(150))
@given(worlds())
def test_none_that_comes_later_moves_a_start(world: World) -> None:
    whole = world.plan()
    for number in range(1, len(world.queue)):
        first = replace(world, queue=world.queue[:number]).plan()
        names = {one.job_id for one in world.queue[:number]}
        assert [name for name in placed(whole) if name in names] == placed(first)
        assert {held.job_id: held.until_ms for held in whole.holds if held.job_id in names} == {
            held.job_id: held.until_ms for held in first.holds
        }


def passed_to(world: World, decided: Plan, at_ms: int) -> World:
    """What has started runs, what ends until then has ended, and nothing else has happened."""
    jobs = {one.job_id: one for one in world.queue}
    begun = []
    for item in decided.placements:
        run_s, uuids = jobs[item.job_id].expected_run_s, tuple(uuid for _, part in item.parts for uuid in part)
        name = f"of-{item.job_id}"
        one = running(name, uuids, tier="on_demand", minutes=0)
        ends_ms = None if run_s is None else world.now_ms + int(run_s * 1000)
        begun.append(replace(one, started_ms=world.now_ms, ends_ms=ends_ms, job_id=item.job_id))
    left = [one for one in [*world.attempts, *begun] if one.ends_ms is None or one.ends_ms > at_ms]
    gone = {item.job_id for item in decided.placements}
    free = [replace(gpu, facts=replace(gpu.facts, is_assigned=False)) for gpu in world.gpus]
    gpus = hold(free, [uuid for one in left for uuid in one.gpus])
    return World(gpus, [one for one in world.queue if one.job_id not in gone], left, at_ms)


@settings(max_examples=examples(150))
@given(worlds())
def test_from_cycle_to_cycle_no_start_moves_later_but_by_one_before_it_that_starts_sooner(world: World) -> None:
    """Each cycle finds all places again: at the same moment, or at the next at which anything ends or is to start."""
    decided = world.plan()
    for _ in range(8):
        promised = {held.job_id: held.until_ms for held in decided.holds}
        ends = [end_ms for _, _, end_ms, _ in spans(world, decided)] + list(promised.values())
        next_ms = min((moment for moment in ends if world.now_ms < moment < NEVER_MS), default=None)
        if next_ms is None:
            return
        world = passed_to(world, decided, world.now_ms if decided.placements else next_ms)
        decided = world.plan()
        now: dict[str, int] = {held.job_id: held.until_ms for held in decided.holds}
        now |= dict.fromkeys(placed(decided), world.now_ms)
        for one in world.queue:  # as they are in order
            before_ms, now_ms = promised.get(one.job_id, NEVER_MS), now.get(one.job_id, NEVER_MS)
            if now_ms < before_ms:
                break  # those behind it count on what it had
            assert now_ms == before_ms, (one.job_id, promised, now)


@settings(max_examples=examples(100))
@given(worlds())
def test_a_question_about_one_that_waits_leaves_the_state_as_it_was(world: World) -> None:
    asked = Question(CONSERVATIVE, world.gpus, world.queue, Workload(NOW_MS, tuple(world.attempts)))
    state = FleetState(world.gpus, CONSERVATIVE)
    decided = plan_on(state, asked.queue, asked.policy, asked.workload)
    before, num_waiting = state.is_free.copy(), len(decided.waiting)
    jobs = {one.job_id: one for one in world.queue}
    for item in decided.waiting:
        answer(state, asked, decided, jobs[item.job_id], 30.0)
        assert np.array_equal(state.is_free, before)
        assert np.array_equal(state.tier("on_demand").counts, state.recount("on_demand"))
    assert num_waiting + len(decided.placements) == len(world.queue)


@settings(max_examples=examples(60))
@given(test_plan_properties.worlds())
def test_with_reclaim_and_tiers_too_every_guarantee_of_placement_holds(mixed: test_plan_properties.World) -> None:
    """I1, I4 and I5 for placements, holds and reclaims; a second plan decides the same."""
    levels = test_plan_properties.LEVELS
    decided = plan(mixed.gpus, mixed.queue, CONSERVATIVE, mixed.workload, levels=levels)
    jobs, by_uuid = {one.job_id: one for one in mixed.queue}, {gpu.uuid: gpu for gpu in mixed.gpus}
    assert sorted([*placed(decided), *(one.job_id for one in decided.waiting)]) == sorted(jobs)
    taken = [uuid for item in decided.placements for _, uuids in item.parts for uuid in uuids]
    reclaimed = [uuid for one in {one.beneficiary: one for one in decided.reclaims}.values() for uuid in one.hold]
    assert len(set(taken)) == len(taken)
    assert not {uuid for uuid in taken if by_uuid[uuid].facts.is_assigned}
    assert not set(taken) & set(reclaimed)
    for held in decided.holds:
        views = [by_uuid[uuid] for uuid in held.gpus]
        wanted = jobs[held.job_id]
        assert not set(held.gpus) & set(reclaimed), "GPUs that are reclaimed for one job are held for no other"
        assert len({view.cohort_key for view in views}) == 1
        assert wanted.fewest_gpus <= len(views) <= wanted.nodes * wanted.gpus_per_node
        if wanted.required_level is not None:
            depth = levels.index(wanted.required_level) + 1
            assert len({view.path[:depth] for view in views}) == 1
            assert all(len(view.path) >= depth and view.path[depth - 1] for view in views)
    assert (
        plan(mixed.gpus[::-1], mixed.queue[::-1], CONSERVATIVE, mixed.workload, levels=test_plan_properties.LEVELS)
        == decided
    )


@settings(max_examples=examples(150))
@given(test_plan_properties.fleets(), st.data())
def test_a_place_in_order_stands_whatever_is_taken_next_to_it(gpus: list[GpuView], data: st.DataObject) -> None:
    """On this a start rests that stays from cycle to cycle; the place with the least left over would move."""
    nodes, level = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([None, "pod", "rack"]))
    slices = data.draw(st.sampled_from([(), (Slice("rack", 2),)])) if nodes % 2 == 0 and level != "rack" else ()
    request = Request(
        data.draw(st.sampled_from(["on_demand", "spot"])),
        nodes,
        data.draw(st.integers(1, 4)),
        required=level,
        prefers_weak=nodes == 1,
        rule=PlacementRule(slices=slices),
    )
    state = FleetState(gpus, CONSERVATIVE, test_plan_properties.LEVELS)
    chosen = place(state, request, in_order=True)
    if chosen is None:
        assert place(state, request) is None, "it finds a place wherever there is one"
        return
    others = [gpu for gpu in np.flatnonzero(state.is_free).tolist() if gpu not in set(chosen.gpus.tolist())]
    taken = data.draw(st.lists(st.sampled_from(others), unique=True)) if others else []
    state.take(np.array(sorted(taken), dtype=np.int64))
    again = place(state, request, in_order=True)
    assert again is not None
    assert again.gpus.tolist() == chosen.gpus.tolist()
