"""The invariants I1 to I29 and I31 of the whole world, checked every thousand events and at its end.

Each event is checked for its own changes where it happens (``store``, ``truth``, ``judging``, ``supervisors``). Here
everything is computed again from the rows, without the indexes that the checks of an event use.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from health.standing import standing
from health.standing.breaker import Way
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.job.spec import NodeLossRule
from muster.domain.lifecycle import attempt as attempts
from muster.domain.lifecycle.contact import LastContact
from muster.domain.lifecycle.model import AttemptLifecycle, JobLifecycle, Timers
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.state_sets import ENDED_PARTS, OUT_OF_SERVICE
from muster.domain.states import TERMINAL_JOB_STATES, AttemptState, HostPartState, ReclaimState, Standing
from simulator.planning.cycles import Planner
from simulator.world.books import Books
from simulator.world.clocks import WALL_START_MS
from simulator.world.judging import Judge
from simulator.world.kernel import Kernel
from simulator.world.picking import RandomPicker
from simulator.world.places import fault_of_place, over_quota
from simulator.world.standings import STAYS_OUT
from simulator.world.store import PLACED, Store
from simulator.world.truth import require

_ENDED: Final = AttemptState.ENDED


@dataclass(frozen=True, slots=True)
class AtItsMoment:
    """An invariant of one moment, which cannot be computed later. ``where`` it is checked."""

    where: str


@dataclass(frozen=True, slots=True)
class NotOfThisWorld:
    """An invariant about something that this world does not have. ``why``, and what checks it instead."""

    why: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The state at the previous inspection."""

    jobs: Mapping[JobId, JobLifecycle]
    attempts: Mapping[AttemptId, AttemptLifecycle]
    hearings: Mapping[NodeId, LastContact]


class Inspector:
    """The inspector of one world. ``accepted``: the client's keys with the jobs that it knows of."""

    def __init__(
        self,
        kernel: Kernel,
        store: Store,
        judge: Judge,
        accepted: Mapping[str, JobId],
        timers: Timers,
        scheduler: Planner | RandomPicker,
        books: Books,
    ) -> None:
        self.kernel, self.store, self.judge, self.accepted, self.timers = kernel, store, judge, accepted, timers
        self.scheduler, self.books = scheduler, books
        self.seen = Seen({}, {}, {})
        self.num_checks = 0

    def check(self) -> None:
        for check in INVARIANTS.values():
            if not isinstance(check, AtItsMoment | NotOfThisWorld):
                check(self)
        explained_evictions(self)
        store = self.store
        self.seen = Seen(dict(store.jobs), dict(store.attempts), dict(store.hearings))
        self.num_checks += 1

    def assigned(self) -> Iterator[tuple[GpuUuid, AttemptId]]:
        """Yield the GPUs in use by the attempts' own rows: until the attempt has ended and its host is clean."""
        for attempt_id, life in self.store.attempts.items():
            for part in life.hosts:
                if life.state is not _ENDED or part.state is not HostPartState.CLEAN:
                    yield from ((gpu, attempt_id) for gpu in self.store.allocated[attempt_id][part.node_id])


def _one_holder(world: Inspector) -> None:
    holders: dict[GpuUuid, AttemptId] = {}
    for gpu, attempt_id in world.assigned():
        require(gpu not in holders, "I1", f"{gpu} is held by {holders.get(gpu)} and {attempt_id}")
        holders[gpu] = attempt_id
    require(holders == world.store.holders, "I1", f"held are {holders}, by the index {world.store.holders}")


def _one_live_attempt(world: Inspector) -> None:
    live: dict[JobId, AttemptId] = {}
    fences: dict[JobId, int] = {}
    for attempt_id, life in world.store.attempts.items():
        before = fences.get(life.job_id, 0)
        require(life.fence > before, "I2", f"the fence of {life.job_id} falls from {before} to {life.fence}")
        fences[life.job_id] = life.fence
        if life.state is not _ENDED:
            require(life.job_id not in live, "I2", f"{live.get(life.job_id)} and {attempt_id} of one job live")
            live[life.job_id] = attempt_id
    require(live == world.store.live_of_job, "I2", f"live are {live}, by the index {world.store.live_of_job}")


def _whole_gangs(world: Inspector) -> None:
    for attempt_id, life in world.store.attempts.items():
        row, picks = world.store.rows[life.job_id], world.store.allocated.get(attempt_id, {})
        is_whole = {part.node_id for part in life.hosts} == picks.keys()
        is_whole &= all(len(part) == row.gpus_per_node for part in picks.values())
        require(is_whole and row.min_nodes <= len(picks) <= row.most_nodes, "I5", f"{attempt_id} has {picks} of {row}")


def _sound_places(world: Inspector) -> None:
    """Require that each gang is in one cohort, and in one domain of the required level."""
    for attempt_id, picks in world.store.allocated.items():
        row = world.store.rows[world.store.attempts[attempt_id].job_id]
        fault = fault_of_place(world.store.rules, row, list(picks))
        require(fault is None, *(fault or ("", "")))


def _within_ceilings(world: Inspector) -> None:
    held: dict[str, int] = {}
    for _, attempt_id in world.assigned():
        tenant = world.store.rows[world.store.attempts[attempt_id].job_id].tenant
        held[tenant] = held.get(tenant, 0) + 1
    most = max(held.values(), default=0)
    require(most <= world.store.ceiling_gpus, "I6", f"{held} GPUs are held, of {world.store.ceiling_gpus} at most")
    by_tier: dict[tuple[str, str], int] = {}
    rows = [world.store.rows[world.store.attempts[attempt_id].job_id] for _, attempt_id in world.assigned()]
    for row in rows:
        by_tier[row.tenant, row.tier] = by_tier.get((row.tenant, row.tier), 0) + 1
    for row in rows:
        over = over_quota(world.store.rules, by_tier, row)
        require(over is None, "I6", f"{over}")


def _reclaimable_tiers(world: Inspector) -> None:
    for attempt_id in world.store.notices:
        row = world.store.rows[world.store.attempts[attempt_id].job_id]
        require(row.notice_ms is not None, "I7", f"{attempt_id} is reclaimed, of a tier that no rule takes back")


def _full_notices(world: Inspector) -> None:
    for attempt_id, notice in world.store.notices.items():
        life = world.store.attempts[attempt_id]
        least_ms = world.store.rows[life.job_id].notice_ms or 0
        told_ms = notice.deadline_ms - notice.committed_ms
        require(told_ms >= least_ms, "I8", f"{attempt_id} has {told_ms} ms to leave, and its tier gives {least_ms}")


def _least_runs(world: Inspector) -> None:
    for attempt_id, notice in world.store.notices.items():
        life = world.store.attempts[attempt_id]
        ran_ms = world.store.ran_ms(life, notice.committed_ms)
        least_ms = world.store.rows[life.job_id].min_run_ms
        require(ran_ms >= least_ms, "I9", f"{attempt_id} is reclaimed after {ran_ms} ms, and its tier gives {least_ms}")


def _breaker_knows(world: Inspector) -> None:
    """Require that no GPU is out of service, by SUSPECT too, that the breaker did not pass.

    The caps themselves are checked at each move, in ``judging.Standings``.
    """
    passed = world.judge.standings.taken_ms.keys()
    suspects = {gpu for gpu, case in world.store.cases.items() if case.standing is Standing.SUSPECT}
    require(suspects <= passed, "I10", f"{suspects - passed} are SUSPECT, and the breaker was not asked")
    out = {gpu for gpu, case in world.store.cases.items() if case.standing in OUT_OF_SERVICE}
    require(out <= passed, "I10", f"{out - passed} are out, and the breaker was not asked")
    require(out == world.store.is_out, "I10", f"{out} are out, by the index {world.store.is_out}")


def _account_agrees(world: Inspector) -> None:
    """Require that the account has exactly the GPUs that rules keep from new work, each with its ways."""
    store, facts = world.store, dict[GpuUuid, set[str]]()
    for gpu, case in store.cases.items():
        if case.standing in STAYS_OUT:
            facts.setdefault(gpu, set()).add(Way.STANDING)
    for gpu in (gpu for node_id in store.nodes_on_hold for gpu in store.gpus[node_id]):
        facts.setdefault(gpu, set()).add(Way.NODE_HOLD)
    account = {each.gpu_uuid: set(each.out_by()) for each in store.breaker.quarantined if each.is_out}
    require(account == facts, "I29", f"out are {facts}, by the account {account}")


def _condemned_are_out(world: Inspector) -> None:
    standings = world.judge.standings
    for gpu, condemned_ms in standings.condemned_ms.items():
        is_proved = standings.proved_ms.get(gpu, 0) > condemned_ms
        is_kept_off = world.store.cases[gpu].standing in OUT_OF_SERVICE or gpu in world.judge.proposed
        require(is_proved or is_kept_off, "I11", f"{gpu} is in service, condemned at {condemned_ms} and not proved")


def _doubted_are_out(world: Inspector) -> None:
    """Require I28 of results. What the breaker holds back is cordoned in production: here it is in ``proposed``."""
    for gpu, group in world.judge.standings.doubted():
        is_kept_off = world.store.cases[gpu].standing in OUT_OF_SERVICE or gpu in world.judge.proposed
        require(is_kept_off, "I28", f"{gpu} is in service, and no burn-in has tested its {group} since a finding")


def _accepted_are_kept(world: Inspector) -> None:
    for key, job_id in world.accepted.items():
        row = world.store.rows.get(job_id)
        require(row is not None and row.key == key, "I12", f"{job_id}, accepted under {key}, is {row}")
    keys = [row.key for row in world.store.rows.values()]
    require(len(set(keys)) == len(keys), "I12", f"one key made two jobs: {sorted(keys)}")


def _programs_apart(world: Inspector) -> None:
    for job_id, runs in world.store.truth.running.items():
        of_nodes = [run.node_id for run in runs.values()]
        require(len(set(of_nodes)) == len(of_nodes), "I13", f"{job_id} runs twice on one of {of_nodes}")
        attempts_of_it = {run.attempt_id for run in runs.values() if run.rule is NodeLossRule.WAIT}
        require(len(attempts_of_it) <= 1, "I13", f"{sorted(attempts_of_it)} of {job_id} run at once")


def _only_forward(world: Inspector) -> None:
    for node_id, before in world.seen.hearings.items():
        now = world.store.hearings.get(node_id)
        is_newer = now is not None and (
            now.seq >= before.seq if now.boot_id == before.boot_id else before.boot_id in now.past_boots
        )
        require(is_newer, "I14", f"the contact of {node_id} was {before}, and then {now}")
    for attempt_id, life in world.store.attempts.items():
        for part in life.hosts:
            is_over = part.state not in ENDED_PARTS or not world.store.truth.runs((attempt_id, part.node_id))
            require(is_over, "I14", f"{attempt_id} is {part.state} at the server and runs on {part.node_id}")


def _decided_alike(world: Inspector) -> None:
    """Require the same decisions from the same facts in another order."""
    now_ms, wall_ms = world.kernel.now_ms, WALL_START_MS + world.kernel.now_ms
    hearings = world.store.hearings
    ticks = [attempts.Tick(each, 0) for each in (hearings, dict(reversed(hearings.items())))]
    for attempt_id in world.store.open_attempts:
        life = world.store.attempts[attempt_id]
        first, again = (attempts.step(life, tick, now_ms, world.timers) for tick in ticks)
        require(first == again, "I19", f"{attempt_id} is decided as {first} and as {again}")
    for gpu, case in world.store.cases.items():
        if not case.evidence and not case.moves:
            continue
        orders = (case, replace(case, evidence=tuple(reversed(case.evidence))))
        moves = {standing.decide(each, wall_ms, DEFAULT_POLICY.health) for each in orders}
        require(len(moves) == 1, "I19", f"{gpu} is judged as {moves}")
    if isinstance(world.scheduler, Planner):
        plan, turned = world.scheduler.planned_twice()
        require(plan == turned, "I19", f"one moment is planned as {plan} and as {turned}")


def _ends_are_final(world: Inspector) -> None:
    for job_id, job in world.seen.jobs.items():
        if job.state in TERMINAL_JOB_STATES:
            now = world.store.jobs.get(job_id)
            if now is not job:
                require(now == job, "I21", f"{job} has become {now}")
    for attempt_id, life in world.seen.attempts.items():
        after = world.store.attempts.get(attempt_id)
        if life.state is _ENDED and after is not life:
            is_same = after is not None and (after.state, after.ending) == (life.state, life.ending)
            require(is_same, "I21", f"{life} has become {after}")


def _free_is_clean(world: Inspector) -> None:
    held = {gpu for gpu, _ in world.assigned()}
    for place, run in world.store.truth.present.items():
        free = [gpu for gpu in run.gpus if gpu not in held]
        require(not free, "I22", f"{free} are free, and {place} is on them")


def _counted_once(world: Inspector) -> None:
    for attempt_id, life in world.store.attempts.items():
        for gpu in (gpu for part in world.store.allocated[attempt_id].values() for gpu in part):
            count = world.store.usage_counts.get((attempt_id, gpu), 0)
            require(count == (life.state is _ENDED), "I23", f"{life.state} {attempt_id} on {gpu} counts {count} times")


def _deadlines_stand(world: Inspector) -> None:
    world.judge.standings.sees(world.store.breaker)
    for attempt_id, life in world.seen.attempts.items():
        if life.stop is not None:
            stop = world.store.attempts[attempt_id].stop
            is_kept = stop is not None and stop.deadline_ms <= life.stop.deadline_ms
            require(is_kept, "I25", f"{attempt_id} was to stop as {life.stop}, and now {stop}")


def _time_is_accounted(world: Inspector) -> None:
    """Require that the ledger accounts for all time of all GPUs, and for each attempt what it had."""
    world.books.keep()


def explained_evictions(world: Inspector) -> None:
    """Require that each released victim of a beneficiary freed GPUs for an attempt of it.

    No numbered invariant states it.
    """
    for attempt_id, notice in world.store.notices.items():
        if notice.beneficiary is None or notice.state is not ReclaimState.RELEASED or notice.hold_ended != PLACED:
            continue
        own = (world.store.attempts[one] for one in world.store.attempts_of.get(notice.beneficiary, ()))
        has_come = any(life.placed_ms >= notice.committed_ms for life in own)
        require(has_come, "reclaim", f"{attempt_id} left for {notice.beneficiary}, which was never placed: {notice}")


Check = Callable[[Inspector], None]
INVARIANTS: Final[Mapping[str, Check | AtItsMoment | NotOfThisWorld]] = {
    "I1": _one_holder,
    "I2": _one_live_attempt,
    "I3": AtItsMoment("placing.Placer.commit, for each GPU: what is admitted may fall right afterwards"),
    "I4": _sound_places,
    "I5": _whole_gangs,
    "I6": _within_ceilings,
    "I7": _reclaimable_tiers,
    "I8": _full_notices,
    "I9": _least_runs,
    "I10": _breaker_knows,
    "I11": _condemned_are_out,
    "I12": _accepted_are_kept,
    "I13": _programs_apart,
    "I14": _only_forward,
    "I15": NotOfThisWorld("a checkpoint is a fence here, no file: the tests of train and of control.checkpoints"),
    "I16": NotOfThisWorld("no caller uses HTTP: tests/authorisation requests everything as every role"),
    "I17": NotOfThisWorld("there are no secrets and no log: the tests of keys and logs"),
    "I18": NotOfThisWorld("the store keeps no events: the unit of work raises; histories played over PostgreSQL"),
    "I19": _decided_alike,
    "I20": AtItsMoment("liveness at the world's end: in one of seven worlds no wake-up ever arrives"),
    "I21": _ends_are_final,
    "I22": _free_is_clean,
    "I23": _counted_once,
    "I24": NotOfThisWorld("there is no selector: the tests of fleet.override_standing"),
    "I25": _deadlines_stand,
    "I26": AtItsMoment("judging.Standings.moves, for each move of a GPU by a rate, a score or flapping"),
    "I27": _time_is_accounted,
    "I28": _doubted_are_out,  # readings have no ages here: tests/control/health/test_freshness.py
    "I29": _account_agrees,
    "I31": AtItsMoment("cycles.Planner._cycle, for each plan; tests/simulator/traces/test_firm_starts.py"),
}
"""Number → its check of the whole world, or the reason why there is none."""
