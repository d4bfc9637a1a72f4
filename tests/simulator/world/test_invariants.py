"""Each inspection of the whole world finds faults in it, whatever the checks of single events use."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from health.standing.account import BreakerState, FleetCounts
from health.standing.breaker import BreakerDecision
from health.standing.gpu_case import GpuCase, Move, MoveReason, move_to
from muster.domain.evidence.traits import FaultGroup
from muster.domain.ids import AttemptId, Fence, GpuUuid, JobId, TenantId
from muster.domain.job.spec import NodeLossRule
from muster.domain.lifecycle import attempt as attempts
from muster.domain.lifecycle.model import JobLifecycle
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import AttemptState, HostPartState, JobState, ReclaimState, Standing
from scheduler.quota.tenancy import Quota, Tenancy
from simulator.planning.patches import take_the_first_listed
from simulator.world.invariants import INVARIANTS, AtItsMoment, Inspector, NotOfThisWorld, explained_evictions
from simulator.world.store import PLACED, JobRow, Notice
from simulator.world.truth import Run, ViolationError
from simulator.world.wiring import TRUE_WIRING
from simulator.world.world import World

CHECKED = {name for name, check in INVARIANTS.items() if not isinstance(check, AtItsMoment | NotOfThisWorld)}


class Planned(World):
    is_planned = True


class ByRng(World):
    is_planned = False


def lived_in(world_type: type[World] = ByRng) -> World:
    """A world in the middle of its history: several attempts have ended, some run, all was inspected."""
    world = world_type(0, TRUE_WIRING)
    world.begin()
    while not (len(world.store.attempts) > 4 and len(world.store.truth.present) > 0 and world.inspector.num_checks):
        world.kernel.run(world.kernel.now_ms + 500)
    world.inspector.check()
    return world


def a_live(world: World) -> AttemptId:
    return next(iter(world.store.live_of_job.values()))


def an_ended(world: World) -> AttemptId:
    return next(key for key, life in world.store.attempts.items() if life.state is AttemptState.ENDED)


def row_of(world: World, attempt_id: AttemptId) -> JobRow:
    return world.store.rows[world.store.attempts[attempt_id].job_id]


def change_row(world: World, attempt_id: AttemptId, **changes: object) -> None:
    row = row_of(world, attempt_id)
    world.store.rows[row.job_id] = replace(row, **changes)  # type: ignore[arg-type]  # each test names its field


def lose_a_holder(world: World) -> None:
    world.store.holders.popitem()


def revive(world: World) -> None:
    life = world.store.attempts[an_ended(world)]
    world.store.attempts[life.attempt_id] = replace(life, state=AttemptState.RUNNING)


def drop_a_host(world: World) -> None:
    life = world.store.attempts[a_live(world)]
    world.store.attempts[life.attempt_id] = replace(life, hosts=life.hosts[:-1])


def mix_cohorts(world: World) -> None:
    assert any(len(picks) > 1 for picks in world.store.allocated.values())
    cohorts = {node_id: str(node_id) for node_id in world.store.gpus}
    world.store.rules = replace(world.store.rules, is_planned=True, cohorts=cohorts)


def lower_the_ceiling(world: World) -> None:
    world.store.ceiling_gpus = 0


def notice(world: World, *, is_short: bool = False) -> None:
    attempt_id = an_ended(world)
    now_ms = world.kernel.now_ms
    world.store.notices.newest[attempt_id] = Notice(now_ms, now_ms + (0 if is_short else 1_000_000))


def reclaim_the_reserved(world: World) -> None:
    change_row(world, an_ended(world), notice_ms=None)
    notice(world)


def report_late(world: World) -> None:
    change_row(world, an_ended(world), notice_ms=1_000)
    notice(world, is_short=True)


def reclaim_the_young(world: World) -> None:
    change_row(world, an_ended(world), notice_ms=1_000, min_run_ms=1 << 40)
    notice(world)


def quarantine_unasked(world: World) -> None:
    gpu, case = next(iter(world.store.cases.items()))
    world.judge.standings.taken_ms = {}
    world.store.cases[gpu] = replace(case, standing=Standing.QUARANTINED)


def leave_the_condemned(world: World) -> None:
    gpu = next(gpu for gpu, case in world.store.cases.items() if case.standing is Standing.HEALTHY)
    world.judge.proposed.discard(gpu)
    world.judge.standings.condemned_ms[gpu] = 1 << 60


def leave_the_doubted(world: World) -> None:
    gpu = next(gpu for gpu, case in world.store.cases.items() if case.standing is Standing.HEALTHY)
    world.judge.proposed.discard(gpu)
    world.judge.standings.wrong_ms[gpu, FaultGroup.MEMORY] = 1 << 60


def lose_a_job(world: World) -> None:
    del world.store.rows[next(iter(world.client.accepted.values()))]


def run_alongside(world: World) -> None:
    job_id, node_id = JobId("job1"), next(iter(world.hosts))
    world.store.truth.running[job_id] = {
        (AttemptId(name), node_id): Run(job_id, AttemptId(name), node_id, Fence(1), (), NodeLossRule.FENCED)
        for name in ("old", "new")
    }


def receive_an_older_beat(world: World) -> None:
    node_id, heard = next(iter(world.store.hearings.items()))
    world.store.hearings[node_id] = replace(heard, seq=heard.seq - 1)


def end_again(world: World) -> None:
    job_id = next(iter(world.store.jobs))
    ended = replace(world.store.jobs[job_id], state=JobState.SUCCEEDED)
    world.inspector.seen = replace(world.inspector.seen, jobs={job_id: ended})
    world.store.jobs[job_id] = replace(ended, state=JobState.FAILED)


def free_what_is_used(world: World) -> None:
    gpu = GpuUuid("GPU-free")
    place, run = next(iter(world.store.truth.present.items()))
    world.store.truth.present[place] = replace(run, gpus=(gpu,))


def count_again(world: World) -> None:
    key = next(key for key in world.store.usage_counts if key[0] == an_ended(world))
    world.store.usage_counts[key] += 1


def forget_an_open_breaker(world: World) -> None:
    world.judge.standings.open_since_ms = {"rack:unknown": 1}


def forget_a_gpu(world: World) -> None:
    world.books._random = lambda: 1.0  # the keeper lives
    world.kernel.now_ms += 1_000
    world.store.cases.popitem()


def hold_uncounted(world: World) -> None:
    world.store.nodes_on_hold.add(next(iter(world.store.gpus)))


FAULTS: dict[str, Callable[[World], None]] = {
    "I1": lose_a_holder,
    "I2": revive,
    "I4": mix_cohorts,
    "I5": drop_a_host,
    "I6": lower_the_ceiling,
    "I7": reclaim_the_reserved,
    "I8": report_late,
    "I9": reclaim_the_young,
    "I10": quarantine_unasked,
    "I11": leave_the_condemned,
    "I12": lose_a_job,
    "I13": run_alongside,
    "I14": receive_an_older_beat,
    "I21": end_again,
    "I22": free_what_is_used,
    "I23": count_again,
    "I25": forget_an_open_breaker,
    "I27": forget_a_gpu,
    "I28": leave_the_doubted,
    "I29": hold_uncounted,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_check_finds_it(name: str) -> None:
    world, check = lived_in(), INVARIANTS[name]
    assert callable(check)
    check(world.inspector)
    FAULTS[name](world)
    with pytest.raises(ViolationError, match=f"^{name}: "):
        check(world.inspector)


def test_a_machine_that_decides_by_random_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    world, check = lived_in(), INVARIANTS["I19"]
    assert callable(check)
    check(world.inspector)
    answers = iter(range(1_000_000))
    monkeypatch.setattr(attempts, "step", lambda *_: next(answers))
    with pytest.raises(ViolationError, match=r"^I19: "):
        check(world.inspector)


def test_a_machine_that_decides_by_the_order_of_what_it_is_reported_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    world, check = lived_in(), INVARIANTS["I19"]
    assert callable(check)
    assert len(world.inspector.store.hearings) > 1
    monkeypatch.setattr(attempts, "step", lambda _life, tick, *_: next(iter(tick.hearings)))
    with pytest.raises(ViolationError, match=r"^I19: "):
        check(world.inspector)


def test_a_planner_that_goes_by_the_order_of_rows_is_found() -> None:
    world, check = Planned(0, replace(TRUE_WIRING, plan=take_the_first_listed)), INVARIANTS["I19"]
    assert callable(check)
    world.begin()
    world.kernel.inspector = None
    with pytest.raises(ViolationError, match=r"^I19: "):
        check_while_it_runs(world, check)


def check_while_it_runs(world: World, check: Callable[[Inspector], None]) -> None:
    for _ in range(500):  # the order decides something only while several jobs wait for free GPUs
        world.kernel.run(world.kernel.now_ms + 500)
        if sum(map(is_queued, world.store.jobs.values())) > 1:
            check(world.inspector)


def is_queued(life: JobLifecycle) -> bool:
    return life.state is JobState.QUEUED


def test_a_department_over_its_quota_is_found() -> None:
    world = lived_in(Planned)
    row = row_of(world, a_live(world))
    quotas = {(TenantId(row.tenant), row.tier): Quota(ceiling=0)}
    world.store.rules = replace(world.store.rules, tenancy=Tenancy(quotas=quotas))
    check = INVARIANTS["I6"]
    assert callable(check)
    with pytest.raises(ViolationError, match=r"^I6: "):
        check(world.inspector)


def test_an_eviction_for_a_job_that_was_never_placed_is_found() -> None:
    world = lived_in()
    beneficiary = world.store.attempts[a_live(world)].job_id
    told = Notice(0, 0, beneficiary, hold_ended=PLACED, state=ReclaimState.RELEASED)
    world.store.notices.newest[an_ended(world)] = told
    explained_evictions(world.inspector)
    world.store.attempts_of[beneficiary] = []
    with pytest.raises(ViolationError, match=r"^reclaim: "):
        explained_evictions(world.inspector)


def test_all_guarantees_stand_in_the_table_and_each_check_is_tried() -> None:
    assert list(INVARIANTS) == [f"I{number}" for number in (*range(1, 30), 31)]
    assert {*FAULTS, "I19"} == CHECKED
    assert all(check.why for check in INVARIANTS.values() if isinstance(check, NotOfThisWorld))


def test_a_host_part_that_is_over_runs_nowhere() -> None:
    world, check = lived_in(), INVARIANTS["I14"]
    assert callable(check)
    attempt_id, node_id = next(place for place in world.store.truth.present if world.store.truth.runs(place))
    life = world.store.attempts[attempt_id]
    over = {node_id: HostPartState.EXITED}
    hosts = tuple(replace(part, state=over.get(part.node_id, part.state)) for part in life.hosts)
    world.store.attempts[attempt_id] = replace(life, hosts=hosts)
    with pytest.raises(ViolationError, match=r"^I14: "):
        check(world.inspector)


def admits_all(
    moves: Iterable[Move], state: BreakerState, _: FleetCounts, __: HealthPolicy, ___: int
) -> BreakerDecision:
    return BreakerDecision(state, tuple(moves), (), None)


def test_rules_that_move_a_gpu_to_and_fro_are_found() -> None:
    """The world's own check of each judgement, not one of the table: no numbered invariant states it."""
    world = lived_in()
    gpu = next(iter(world.store.cases))
    sides = {Standing.HEALTHY: Standing.SUSPECT, Standing.SUSPECT: Standing.HEALTHY}

    def to_and_fro(case: GpuCase, now_ms: int, _: HealthPolicy) -> Move:
        return move_to(case, sides[case.standing], MoveReason.RECOVERED, now_ms)

    world.store.cases[gpu] = replace(world.store.cases[gpu], standing=Standing.HEALTHY)
    judge = world.judge
    # Bugs planted in the middle of a history; the true breaker holds the second move back.
    judge._wiring = replace(TRUE_WIRING, decide=to_and_fro, admit=admits_all)
    with pytest.raises(ViolationError, match=r"^rest: "):
        judge._judge({gpu: world.store.cases[gpu]})  # what a finding would start
