"""A scenario played: the planner decides at each time at which something changes, and takes effect at once.

The steps of the control plane between a decision and its effect are left out here: claims, cleaning, and heartbeats
other than the one that brings a notice. ``simulator.world.world`` has them; this world has what a plan is about.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from muster.domain.ids import AttemptId, JobId, NodeId, TenantId
from scheduler.model import (
    Parts,
    Placement,
    Plan,
    Question,
    Reclaim,
    ReclaimLoss,
    ResumeHold,
    StandingReclaim,
    WaitingJob,
    Workload,
)
from scheduler.planner import plan
from scheduler.solve.job_rules import rule_of
from simulator.scenarios.crashing import Crashes, DiedError
from simulator.scenarios.document import DecisionKind, Scenario
from simulator.scenarios.form import Happening
from simulator.scenarios.job_form import JobFields, QueuedJob, RunningJob
from simulator.scenarios.played_fleet import PlayedFleet
from simulator.scenarios.report import planned, reasons_of, recovery_of, runner_up_of, why_of
from simulator.scenarios.shown import (
    Attempt,
    Notice,
    Window,
    ms_of,
    running_of,
    seconds_of,
    waiting_of,
)

TICK_MS: Final = 60_000
"""Interval of the planner while a job is pending; a control plane runs it each second."""
_MOST_MOMENTS: Final = 100_000


def play(scenario: Scenario) -> list[dict[str, Any]]:
    """Return every decision in the order of time: ``at_s``, ``job``, ``kind``, and the fields of the kind.

    Raises:
        ValueError: running jobs need GPUs that are not free on their nodes.
    """
    world = _World(scenario)
    for at_s, together in groupby(scenario.happenings, key=lambda one: one.at_s):
        world.until(ms_of(at_s))
        world.happen(list(together))
    world.until(ms_of(scenario.until_s))
    return world.decisions


class _World:
    def __init__(self, scenario: Scenario) -> None:
        self._policy, self._levels = scenario.rules, scenario.topology.levels
        self._fleet = PlayedFleet(scenario, self._policy)
        self._tenancy = scenario.tenancy
        self._now_ms = ms_of(0)
        self._running: dict[str, Attempt] = {}
        self._waiting: dict[str, WaitingJob] = {}
        self._shapes: dict[str, JobFields] = {}
        self._queued_ms: dict[str, int] = {}
        self._reclaims: dict[AttemptId, StandingReclaim] = {}
        self._kept: dict[str, ResumeHold] = {}
        self._losses: list[ReclaimLoss] = []
        self._peaks: Counter[TenantId] = Counter()
        self._reported: dict[str, str] = {}
        self._num_attempts = 0
        self._done: list[tuple[str, int, float]] = []
        self._failures_per_gpu_hour = scenario.failures_per_gpu_hour
        self._crashes = Crashes()
        self.decisions: list[dict[str, Any]] = []
        for state in scenario.gpus:
            self._fleet.change(state)
        for job in scenario.jobs.running:
            self._begin_with(job)
        for queued in scenario.jobs.queued:
            self._submit(queued)

    def until(self, end_ms: int) -> None:
        """Decide now, and at each time up to then at which something ends."""
        for _ in range(_MOST_MOMENTS):
            self._work()
            self._decide()
            moment = min(self._moments(), default=None)
            if moment is None or moment > end_ms:
                self._now_ms = max(self._now_ms, end_ms)
                return
            self._now_ms = max(self._now_ms, moment)
            self._pass()
        message = f"the scenario does not end: it has more than {_MOST_MOMENTS:,} moments of change; shorten it"
        raise ValueError(message)

    def happen(self, together: Sequence[Happening]) -> None:
        """Apply all events of one moment before the planner decides again."""
        for what in together:
            self._happens(what)
        self._interrupt()

    def _happens(self, what: Happening) -> None:
        if what.submit is not None:
            self._submit(what.submit)
        elif what.plan is not None:
            self._plan(what.plan)
        elif what.change is not None:
            self._fleet.change(what.change)
        elif what.cancel is not None:
            self._is_over(what.cancel, "stopped")
        elif what.end is not None:
            self._is_over(what.end, "ended")
        elif what.restart is not None:
            self._reported.clear()  # all else that this world knows is a row of the control plane's
        elif what.crash is not None:
            self._crashes.arm(what.crash)

    def _is_over(self, name: str, kind: DecisionKind) -> None:
        """End the job, whether it runs or is pending; an ended one is ignored."""
        waited = self._waiting.pop(name, None)
        self._kept.pop(name, None)
        if waited is not None or name in self._running:
            self._end(name, kind)

    def _begin_with(self, job: RunningJob) -> None:
        try:
            parts = tuple((NodeId(node), self._fleet.taken_of(node, job.gpus_per_node)) for node in job.nodes)
        except ValueError as fault:
            message = f"jobs.running: {job.name} {fault}"
            raise ValueError(message) from fault
        saved_ms = None if job.last_checkpoint_s is None else ms_of(job.last_checkpoint_s)
        self._start(job.name, job, parts, ms_of(job.started_s), saved_ms)

    def _start(self, name: str, job: JobFields, parts: Parts, started_ms: int, saved_ms: int | None = None) -> None:
        self._num_attempts += 1
        ends_ms = None if job.duration_s is None else started_ms + round(job.duration_s * 1000)
        attempt_id = AttemptId(f"attempt-{self._num_attempts:06}")
        self._shapes[name] = job
        self._running[name] = Attempt(attempt_id, job, parts, started_ms, saved_ms, ends_ms)
        held = Counter(TenantId(one.job.tenant) for one in self._running.values() for _ in one.gpus)
        for tenant, number in held.items():
            self._peaks[tenant] = max(self._peaks[tenant], number)

    def _submit(self, job: QueuedJob) -> None:
        self._shapes[job.name] = job
        queued_ms = self._queued_ms[job.name] = min(ms_of(job.queued_s), self._now_ms)
        self._waiting[job.name] = self._waiting_job(job, queued_ms, job.nodes, ())

    def _waiting_job(self, job: JobFields, queued_ms: int, nodes: int, keep: Parts) -> WaitingJob:
        return replace(waiting_of(job, queued_ms, nodes, keep), rule=rule_of(job, self._policy.placement))

    def _record(self, job: str, kind: DecisionKind, **words: Any) -> None:
        said = {name: word for name, word in words.items() if word not in (None, [], ())}
        self.decisions.append({"at_s": seconds_of(self._now_ms), "job": job, "kind": kind, **said})

    def _moments(self) -> list[int]:
        """Return the times of the next ends, of planned work and of a check that is soon due while a job is pending."""
        ends = [moment for moment in (one.over_ms for one in self._running.values()) if moment is not None]
        if self._waiting:
            ends.append(self._now_ms + TICK_MS)
            ends += [moment for moment in map(self._waits_no_longer_ms, self._waiting.values()) if moment is not None]
        arrivals = [one.notice.arrives_ms for one in self._running.values() if one.notice is not None]
        ends += [max(arrives_ms, self._crashes.up_ms) for arrives_ms in arrivals]
        ends += [edge for edge in (*self._fleet.edges_ms(), self._crashes.up_ms) if edge > self._now_ms]
        return [max(moment, self._now_ms + 1) for moment in ends]

    def _work(self) -> None:
        """Send stop requests to jobs where planned work is near; cordon the nodes while it is done."""
        self._fleet.cordon_for_work(self._now_ms)
        for window in self._fleet.windows:
            if window.closes_ms <= self._now_ms < window.until_ms:
                self._clear(window)

    def _clear(self, window: Window) -> None:
        for name, attempt in sorted(self._running.items()):
            is_there = any(node in window.nodes for node, _ in attempt.parts)
            if not is_there or (attempt.stops_ms is not None and attempt.stops_ms <= window.starts_ms):
                continue
            stops_ms = max(window.starts_ms, self._now_ms)
            attempt.leave_by(stops_ms, self._now_ms)
            self._record(name, "notice", why="maintenance", deadline_s=seconds_of(stops_ms))

    def _waits_no_longer_ms(self, job: WaitingJob) -> int | None:
        """Return when the planner stops waiting for a replacement in the job's domain, or None."""
        if job.interrupted_ms is None:
            return None
        until_ms = job.interrupted_ms + round(self._policy.recovery.wait_for_replacement_s * 1000)
        return until_ms if until_ms > self._now_ms else None

    def _pass(self) -> None:
        self._deliver()
        for name, one in sorted(self._running.items()):
            if one.ends_ms is not None and one.ends_ms <= self._now_ms:
                self._end(name, "ended")
            elif one.leaves_ms is not None and one.leaves_ms <= self._now_ms:
                self._requeue(name)
            elif one.wall_ms is not None and one.wall_ms <= self._now_ms:
                self._end(name, "stopped")

    def _deliver(self) -> None:
        """Bring the notices that are due to their victims, which leave from now on whatever becomes of the job."""
        if self._crashes.is_down(self._now_ms):
            return
        for attempt in self._running.values():
            if attempt.notice is None or attempt.notice.arrives_ms > self._now_ms:
                continue
            attempt.receive(attempt.notice, self._now_ms)
            reclaim = self._reclaims.get(attempt.attempt_id)
            if reclaim is not None:
                self._reclaims[attempt.attempt_id] = replace(reclaim, is_delivered=True)

    def _end(self, name: str, kind: DecisionKind) -> None:
        attempt = self._running.pop(name, None)
        if attempt is not None:
            self._fleet.hold(attempt.gpus, is_assigned=False)
            self._done.append(self._work_of(name, attempt))
        self._record(name, kind)

    def _requeue(self, name: str, *, is_interrupted: bool = False) -> None:
        """Release its GPUs and queue it again. ``is_interrupted``: by a fault, not by a notice."""
        attempt = self._running[name]
        if attempt.is_reclaimed:
            self._losses.append(self._loss_of(attempt))
        if attempt.keeps and not is_interrupted:
            self._shrink(name, attempt)
            return
        self._end(name, "interrupted")
        nodes = attempt.job.nodes if isinstance(attempt.job, QueuedJob) else len(attempt.parts)
        waiting = self._waiting_job(attempt.job, self._queued_ms.get(name, attempt.started_ms), nodes, attempt.parts)
        self._waiting[name] = replace(waiting, interrupted_ms=self._now_ms if is_interrupted else None)
        if is_interrupted:
            self._keep(name, attempt)

    def _loss_of(self, attempt: Attempt) -> ReclaimLoss:
        return ReclaimLoss(TenantId(attempt.job.tenant), len(attempt.gpus) - len(attempt.keeps), self._now_ms)

    def _keep(self, name: str, attempt: Attempt) -> None:
        """Keep the GPUs of its good hosts for it until it is placed, or cannot continue with them."""
        promised = {uuid for reclaim in self._reclaims.values() for uuid in reclaim.hold}
        good = [uuid for _, own in attempt.parts if not self._fleet.is_out(own) for uuid in own if uuid not in promised]
        if good:
            self._kept[name] = ResumeHold(JobId(name), tuple(good), TenantId(attempt.job.tenant), attempt.job.tier)

    def _shrink(self, name: str, attempt: Attempt) -> None:
        """Continue the job on the hosts that it keeps; it has saved."""
        parts = tuple((node, uuids) for node, uuids in attempt.parts if set(uuids) <= set(attempt.keeps))
        self._fleet.hold(attempt.gpus, is_assigned=False)
        del self._running[name]
        self._fleet.hold([uuid for _, uuids in parts for uuid in uuids], is_assigned=True)
        self._start(name, attempt.job, parts, self._now_ms, self._now_ms)
        self._record(name, "shrunk", nodes=[node for node, _ in parts])

    def _interrupt(self) -> None:
        """End jobs on GPUs that may no longer be used, and queue them again."""
        for name, attempt in sorted(self._running.items()):
            if self._fleet.is_out(attempt.gpus):
                self._requeue(name, is_interrupted=True)

    def _work_of(self, name: str, attempt: Attempt) -> tuple[str, int, float]:
        """Return its tier, when its job was queued, and the GPU-seconds that it has run."""
        ran_s = (self._now_ms - attempt.started_ms) / 1000
        return attempt.job.tier, self._queued_ms.get(name, attempt.started_ms), len(attempt.gpus) * ran_s

    def _queue(self) -> list[WaitingJob]:
        """Return the pending jobs, each with the work of later jobs of its tier."""
        work = [*self._done, *(self._work_of(name, attempt) for name, attempt in self._running.items())]
        return [
            replace(
                job, overtaken_gpu_s=sum(done for tier, came, done in work if tier == job.tier and came > job.queued_ms)
            )
            for job in self._waiting.values()
        ]

    def _decide(self) -> None:
        if self._crashes.is_down(self._now_ms):
            return
        try:
            self._carry_out(
                plan(self._fleet.views(), self._queue(), self._policy, self._workload(), levels=self._levels)
            )
        except DiedError:
            self._reported.clear()

    def _carry_out(self, decided: Plan) -> None:
        """Commit the decisions one by one, as the control plane does."""
        names = {attempt.attempt_id: name for name, attempt in self._running.items()}
        placed = {placement.job_id for placement in decided.placements}
        for lapse in decided.lapses:
            if lapse.beneficiary not in placed:
                self._let_go(lapse.beneficiary)
        for placement in decided.placements:
            self._crashes.reach("placement.place.before_commit", self._now_ms)
            self._place(placement)
            self._crashes.reach("placement.place.after_commit", self._now_ms)
        for withdrawal in decided.withdrawals:
            self._withdraw(names[withdrawal.victim], withdrawal.beneficiary, withdrawal.why)
        self._notify(decided, names)
        self._explain(decided)
        for growth in decided.growths:
            attempt = self._running[names[growth.attempt_id]]
            self._fleet.hold(attempt.gpus, is_assigned=False)
            attempt.parts = growth.parts
            self._fleet.hold(attempt.gpus, is_assigned=True)
            self._record(names[growth.attempt_id], "grown", nodes=[node for node, _ in growth.parts])

    def _plan(self, job: QueuedJob) -> None:
        """Report what would become of the job now, by the same planner on the same input; nothing is kept."""
        one = self._waiting_job(job, min(ms_of(job.queued_s), self._now_ms), job.nodes, ())
        asked = Question(self._policy, self._fleet.views(), [*self._queue(), one], self._workload())
        names = {attempt.attempt_id: name for name, attempt in self._running.items()}
        self._record(job.name, "planned", **planned(asked, one, self._levels, names, self._fleet.windows))

    def _withdraw(self, victim: str, beneficiary: JobId, why: str) -> None:
        attempt = self._running[victim]
        self._reclaims.pop(attempt.attempt_id, None)
        attempt.notice = None
        attempt.keeps = ()
        self._record(beneficiary, "withdrawn", victims=[victim], why=why)

    def _let_go(self, beneficiary: JobId) -> None:
        self._kept.pop(beneficiary, None)
        self._reclaims = {key: one for key, one in self._reclaims.items() if one.beneficiary != beneficiary}

    def _place(self, placement: Placement) -> None:
        job_id, parts, swap = placement.job_id, placement.parts, placement.swap
        self._let_go(job_id)
        del self._waiting[job_id]
        self._reported.pop(job_id, None)
        self._fleet.hold([uuid for _, uuids in parts for uuid in uuids], is_assigned=True)
        self._start(job_id, self._shapes[job_id], parts, self._now_ms)
        told = {} if swap is None else recovery_of(swap)
        self._record(job_id, "placed", nodes=[node for node, _ in parts], slots=self._fleet.slots_of(parts), **told)

    def _notify(self, decided: Plan, names: Mapping[AttemptId, str]) -> None:
        heartbeat_ms = round(self._policy.contact.heartbeat_s * 1000)
        for job_id in dict.fromkeys(reclaim.beneficiary for reclaim in decided.reclaims):
            own = [reclaim for reclaim in decided.reclaims if reclaim.beneficiary == job_id]
            self._crashes.reach("reclaim.notify.before_commit", self._now_ms)
            for reclaim in own:
                deadline_ms = self._now_ms + round(reclaim.notice_s * 1000)
                attempt = self._running[names[reclaim.victim]]
                attempt.notice = Notice(self._now_ms, deadline_ms, self._now_ms + heartbeat_ms)
                attempt.keeps = reclaim.keeps
                self._reclaims[reclaim.victim] = StandingReclaim(
                    reclaim.victim, job_id, deadline_ms, reclaim.hold, reclaim.keeps
                )
            self._record_reclaim(job_id, own, names)
            self._crashes.reach("reclaim.notify.after_commit", self._now_ms)

    def _record_reclaim(self, job_id: JobId, own: Sequence[Reclaim], names: Mapping[AttemptId, str]) -> None:
        best = own[0].runner_up
        keeps = {names[one.victim]: self._fleet.nodes_of(one.keeps) for one in own if one.keeps}
        self._record(
            job_id,
            "reclaim",
            victims=sorted(names[one.victim] for one in own),
            nodes=self._fleet.nodes_of(own[0].hold),
            deadline_s=max(seconds_of(self._now_ms) + one.notice_s for one in own),
            cost_gpu_s=round(sum(one.cost_gpu_s for one in own), 1),
            runner_up=None if best is None else runner_up_of(best, names),
            keeps=keeps or None,
        )

    def _explain(self, decided: Plan) -> None:
        """Report why each job is pending if the reason is new; with a hold, also its nodes and time."""
        held = {one.job_id: one for one in decided.holds}
        for item in decided.waiting:
            self._waiting[item.job_id] = replace(
                self._waiting[item.job_id], firm_start=item.firm_start, postponed=item.postponed
            )
            why = why_of(item.why, item.verdict, self._fleet.windows, self._now_ms)
            if self._reported.get(item.job_id) == why:
                continue
            self._reported[item.job_id] = why
            one = held.get(item.job_id)
            if one is None:
                self._record(item.job_id, "waits", why=why, **reasons_of(item.verdict))
            else:
                self._record(
                    item.job_id,
                    "held",
                    nodes=self._fleet.nodes_of(one.gpus),
                    until_s=seconds_of(one.until_ms),
                    why=why,
                    **reasons_of(item.verdict),
                )

    def _leaving_for_none(self) -> Iterator[ReclaimLoss]:
        """Yield the losses of victims that leave though nothing is held for a job any more."""
        for attempt in self._running.values():
            if attempt.is_reclaimed and attempt.attempt_id not in self._reclaims:
                yield self._loss_of(attempt)

    def _workload(self) -> Workload:
        helped = {reclaim.beneficiary for reclaim in self._reclaims.values()}  # what they kept is held with the rest
        return Workload(
            now_ms=self._now_ms,
            running=tuple(running_of(name, one) for name, one in self._running.items()),
            reclaims=tuple(self._reclaims.values()),
            holds=tuple(self._kept[name] for name in sorted(self._kept.keys() - helped)),
            losses=(*self._losses, *self._leaving_for_none()),
            peak_gpus=dict(self._peaks),
            tenancy=self._tenancy,
            failures_per_gpu_hour=self._failures_per_gpu_hour,
            maintenance_starts=self._fleet.maintenance_starts(self._now_ms),
            maintenance_ends=self._fleet.maintenance_ends(self._now_ms),
        )
