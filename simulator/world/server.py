"""The control plane's use cases over the store: each is one transaction, with failpoints before and after its commit.

Messages after a commit (wake-ups, answers) are lost if the process dies in between; without the commit nothing has
happened.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from health.standing.breaker import BreakerState
from muster.domain.exit.exits import ExitRecord, classify
from muster.domain.ids import AttemptId, Fence, GpuUuid, JobId, NodeId
from muster.domain.lifecycle import attempt as attempts
from muster.domain.lifecycle import job as jobs
from muster.domain.lifecycle.host import ClaimGranted, ClaimRefused, HeartbeatAnswered, Phase
from muster.domain.lifecycle.model import AttemptLifecycle, JobLifecycle, Verdict
from muster.domain.state_sets import PARTS_THAT_MAY_RUN
from muster.domain.states import TERMINAL_JOB_STATES, AttemptState, JobState, StopReason
from simulator.planning.keeping import kept_of
from simulator.world.failpoints import AROUND
from simulator.world.kernel import Action, Kernel
from simulator.world.settings import Settings
from simulator.world.store import JobRow, Store
from simulator.world.truth import require
from simulator.world.wiring import Wiring

if TYPE_CHECKING:
    from simulator.world.hosts import Host

_GONE: Final = frozenset({Phase.EXITED, Phase.CLEAN})
HostAttempts = tuple[tuple[AttemptId, Fence, Phase], ...]
Fact = tuple[str, ExitRecord | None]


class ServerCrashedError(Exception):
    """The process dies here."""


class Server:
    name = "server"

    def __init__(self, kernel: Kernel, rng: Random, settings: Settings, wiring: Wiring, store: Store) -> None:
        self.store = store
        self.hosts: dict[NodeId, Host] = {}
        self.is_up = True
        self.started_ms = -settings.timers.no_expiry_after_start_ms
        self.crash_rates = dict(settings.crash_rates)
        self.crashes: Counter[str] = Counter()
        self.timers = wiring.server_timers(settings.timers)
        self._true_timers = settings.timers
        self._kernel, self._random, self._wiring = kernel, rng.random, wiring
        self._checks_single = settings.checks_single
        self._forgotten: set[AttemptId] = set()

    def receive(self, use_case: Action, *args: object) -> None:
        """Take one request; the process may die in it."""
        if not self.is_up:
            return
        try:
            use_case(*args)
        except ServerCrashedError:
            self.go_down(int(self._random() * 5 * self.timers.heartbeat_ms))

    def go_down(self, for_ms: int) -> None:
        if self.is_up:
            self.is_up = False
            self._kernel.after(for_ms, self.come_up)

    def come_up(self) -> None:
        if not self.is_up:
            self.is_up = True
            self.started_ms = self._kernel.now_ms
            if self._wiring.forgets_deadlines_at_restart:
                self._forgotten.update(self.store.open_attempts)
            if self._wiring.forgets_breaker_at_restart:
                self.store.breaker = BreakerState()

    def failpoint(self, name: str) -> None:
        rate = self.crash_rates.get(name)
        if rate and self._random() < rate:
            self.crashes[name] += 1
            raise ServerCrashedError

    def submit(self, row: JobRow, max_restarts: int, acknowledge: Action) -> None:
        """Accept a job: one key makes one job (I12)."""
        job_id = self.store.job_of_key.get(row.key) if self._wiring.remembers_keys else None
        if job_id is None:
            if not self._wiring.answers_after_commit:
                acknowledge(row)
            self.failpoint("job.submit.before_commit")
            is_new = row.key not in self.store.job_of_key
            require(is_new, "I12", f"the key {row.key} makes a second job")
            self.store.job_of_key[row.key] = row.job_id
            self.store.rows[row.job_id] = row
            self.store.submitted_ms[row.job_id] = self._kernel.now_ms
            self.store.put_job(JobLifecycle(row.job_id, max_restarts=max_restarts))
            self.failpoint("job.submit.after_commit")
        acknowledge(row)

    def cancel(self, job_id: JobId) -> None:
        life = self.store.jobs[job_id]
        after, commands = self._wiring.job_step(life, jobs.CancelRequested(), self._kernel.now_ms, self.timers)
        self.failpoint("job.cancel.before_commit")
        self.store.put_job(after)
        attempt_id = self.store.live_of_job.get(job_id)
        rings: tuple[attempts.Command, ...] = ()
        if commands and attempt_id is not None:
            rings = self.stop_in(attempt_id, StopReason.CANCEL, self.store.rows[job_id].stop_grace_ms)
        self.failpoint("job.cancel.after_commit")
        self.send_wakeups(rings)

    def stop(self, attempt_id: AttemptId, reason: StopReason, grace_ms: int) -> None:
        if attempt_id in self.store.live_of_job.values():
            self.failpoint("attempt.stop.before_commit")
            rings = self.stop_in(attempt_id, reason, grace_ms)
            self.failpoint("attempt.stop.after_commit")
            self.send_wakeups(rings)

    def resize(self, attempt_id: AttemptId, grace_ms: int, more: tuple[GpuUuid, ...]) -> None:
        """Let an elastic job's attempt leave for another size; its GPUs, and ``more`` if free, stay its job's."""
        life = self.store.attempts[attempt_id]
        row = self.store.rows[life.job_id]
        if not row.is_elastic or life.stop is not None or life.ending is not None:
            return
        own = [gpu for part in self.store.allocated[attempt_id].values() for gpu in part]
        self.resize_to(attempt_id, grace_ms, [*own, *(gpu for gpu in more if gpu not in self.store.holders)])

    def resize_to(self, attempt_id: AttemptId, grace_ms: int, gpus: Sequence[GpuUuid]) -> None:
        """Ask the attempt to leave. ``gpus``: GPUs on which its job will continue."""
        self.failpoint("job.resize.before_commit")
        self.store.hold(self.store.attempts[attempt_id].job_id, gpus)
        rings = self.stop_in(attempt_id, StopReason.RESIZE, grace_ms)
        self.failpoint("job.resize.after_commit")
        self.send_wakeups(rings)

    def stop_in(self, attempt_id: AttemptId, reason: StopReason, grace_ms: int) -> tuple[attempts.Command, ...]:
        """Request a stop within a transaction, and return the wake-ups to send after its commit."""
        event = attempts.StopRequested(reason, self._kernel.now_ms + grace_ms)
        life = self.store.attempts[attempt_id]
        after, commands = self._wiring.attempt_step(life, event, self._kernel.now_ms, self.timers)
        self._apply(life, after, commands)
        return commands

    def notify_victim(self, attempt_id: AttemptId) -> tuple[attempts.Command, ...]:
        """Request the victim's stop within a transaction: it leaves by the deadline of its notice."""
        store = self.store
        notice = store.notices.untold(attempt_id)
        if notice is None:
            return ()
        store.notices.report(attempt_id)
        if notice.keeps:
            store.hold(store.attempts[attempt_id].job_id, notice.keeps)
        return self.stop_in(attempt_id, StopReason.RECLAIM, notice.deadline_ms - self._kernel.now_ms)

    def _notify_victims(self, node_id: NodeId) -> list[attempts.Command]:
        rings: list[attempts.Command] = []
        for attempt_id in tuple(self.store.open_on[node_id]):
            part = attempts.part_of(self.store.attempts[attempt_id], node_id)
            notice = self.store.notices.untold(attempt_id)
            if notice is None or part is None or part.state not in PARTS_THAT_MAY_RUN:
                continue
            if notice.hold_ended is None or not self._wiring.rechecks_delivered:
                rings += self.notify_victim(attempt_id)
        return rings

    def placed(self, life: AttemptLifecycle, picks: Mapping[NodeId, tuple[GpuUuid, ...]]) -> None:
        """Do nothing: a recording server overrides this, which is called after an attempt was stored."""

    def step_attempt(self, life: AttemptLifecycle, event: attempts.Event) -> tuple[attempts.Command, ...]:
        """Apply one event in one transaction."""
        after, commands = self._wiring.attempt_step(life, event, self._kernel.now_ms, self.timers)
        if after is not life:
            before_commit, after_commit = AROUND[type(event)]
            self.failpoint(before_commit)
            self._apply(life, after, commands)
            self.failpoint(after_commit)
        if commands:
            self.send_wakeups(commands)
        return commands

    def _apply(self, before: AttemptLifecycle, after: AttemptLifecycle, commands: tuple[attempts.Command, ...]) -> None:
        now_ms = self._kernel.now_ms
        no_expiry_ms = self._true_timers.no_expiry_after_start_ms
        self.store.require_lease_may_end(before, after, now_ms - self.started_ms, no_expiry_ms)
        self.store.put_attempt(after)
        for command in commands:
            if isinstance(command, attempts.Ended):
                self.store.count_usage(after.attempt_id)
                self._end_job(after, command.verdict)
        has_ended = after.state is AttemptState.ENDED and before.state is not AttemptState.ENDED
        if has_ended and self.store.rules.is_planned and self._wiring.keeps_interrupted:
            self._keep(after)

    def _keep(self, life: AttemptLifecycle) -> None:
        """Hold the attempt's GPUs for its job. Random picking never ends such a hold, so only planned worlds use it."""
        if self.store.jobs[life.job_id].state is JobState.RECOVERING:
            self.store.hold(life.job_id, kept_of(life, self.store.allocated[life.attempt_id]))

    def _end_job(self, life: AttemptLifecycle, verdict: Verdict) -> None:
        job = self.store.jobs[life.job_id]
        self.store.put_job(self._wiring.job_step(job, jobs.AttemptEnded(verdict), self._kernel.now_ms, self.timers)[0])

    def send_wakeups(self, commands: Sequence[attempts.Command]) -> None:
        for command in commands:
            if isinstance(command, attempts.Wake):
                self.wake(command.node_id)

    def wake(self, node_id: NodeId) -> None:
        host = self.hosts[node_id]
        host.wakeup.send(host.on_wakeup)

    def heartbeat(
        self, node_id: NodeId, boot_id: str, seq: int, on_host: HostAttempts, sent_ms: int, launch: int,
        is_woken: bool,  # noqa: FBT001  # by place, as all that crosses the wire
    ) -> None:  # fmt: skip
        store, host = self.store, self.hosts[node_id]
        if boot_id not in store.known_boots and not host.is_boot(boot_id):
            return  # not modelled: a boot whose first heartbeat comes after its successor's, since wires reorder
        hearing = self._wiring.accept_heartbeat(store.hearings.get(node_id), boot_id, seq, self._kernel.now_ms)
        if hearing is None:
            host.down.send(host.on_answer, launch, HeartbeatAnswered(sent_ms, 0))
            return
        self.failpoint("host.heartbeat.before_commit")
        store.hearings[node_id] = hearing
        store.times.note_contact(node_id, self.timers.lost_ms)
        store.known_boots.add(boot_id)
        listed = {item[0] for item in on_host}
        unclaimed: list[tuple[AttemptId, Fence]] = []
        for attempt_id in tuple(store.open_on[node_id]):
            life = store.attempts[attempt_id]
            part = attempts.part_of(life, node_id)
            is_listed = attempt_id in listed
            if part is not None and part.state in PARTS_THAT_MAY_RUN and is_listed == (part.omitted_ms is not None):
                self.step_attempt(life, attempts.Listed(node_id, boot_id, is_listed))
            if self._wiring.is_unclaimed_on(life, node_id) and (is_woken or self._wiring.lists_unclaimed_unrung):
                unclaimed.append((attempt_id, life.fence))
        rings = self._notify_victims(node_id) if store.notices.newest else []
        stops, forget = self._orders(node_id, on_host)
        go = self._go(node_id) if self._wiring.repeats_go else ()
        self.failpoint("host.heartbeat.after_commit")
        answer = HeartbeatAnswered(sent_ms, self.timers.agent_lease_ms, tuple(unclaimed), stops, forget, go)
        host.down.send(host.on_answer, launch, answer)
        self.send_wakeups(rings)

    def _go(self, node_id: NodeId) -> tuple[AttemptId, ...]:
        lives = (self.store.attempts[attempt_id] for attempt_id in self.store.open_on[node_id])
        return tuple(life.attempt_id for life in lives if attempts.may_go(life, node_id))

    def _orders(
        self, node_id: NodeId, on_host: HostAttempts
    ) -> tuple[Mapping[AttemptId, tuple[str, int]], tuple[AttemptId, ...]]:
        stops: dict[AttemptId, tuple[str, int]] = {}
        forget: list[AttemptId] = []
        open_here = self.store.open_on[node_id]
        for attempt_id, _, phase in on_host:
            if attempt_id not in open_here:
                if phase is Phase.CLEAN:
                    forget.append(attempt_id)
                order: tuple[str, int] | None = ("stale", 0)
            else:
                order = self._wiring.stop_order(self.store.attempts[attempt_id], node_id, self._kernel.now_ms)
            if order is not None and phase not in _GONE:
                stops[attempt_id] = (order[0], 0) if attempt_id in self._forgotten else order
        return stops, tuple(forget)

    def claim(
        self, node_id: NodeId, attempt_id: AttemptId, fence: Fence, boot_id: str, sent_ms: int, launch: int,
        can_wait: bool,  # noqa: FBT001  # by place, as all that crosses the wire
    ) -> None:  # fmt: skip
        life = self.store.attempts[attempt_id]
        host = self.hosts[node_id]
        hearing = self.store.hearings.get(node_id)
        commands: tuple[attempts.Command, ...] = ()
        if not self._wiring.knows_claiming_boot or (hearing is not None and hearing.boot_id == boot_id):
            nonce = f"{node_id}/{attempt_id}"
            event = attempts.ClaimRequested(node_id, fence, boot_id, nonce, can_wait, self._checks_single)
            commands = self.step_attempt(life, event)
        for command in commands:
            if isinstance(command, attempts.Grant):
                part = attempts.part_of(self.store.attempts[attempt_id], node_id)
                awaits_go = part is not None and part.awaits_go
                granted = ClaimGranted(attempt_id, life.job_id, sent_ms, self.timers.agent_lease_ms, awaits_go)
                host.down.send(host.on_answer, launch, granted)
                return
        host.down.send(host.on_answer, launch, ClaimRefused(attempt_id))

    def report(
        self, node_id: NodeId, attempt_id: AttemptId, fence: Fence, boot_id: str, facts: tuple[Fact, ...],
        acknowledge: Action, launch: int, phase: Phase,
    ) -> None:  # fmt: skip
        """Apply each fact at most once, in the order in which they occurred (I14)."""
        for kind, record in facts:
            life = self.store.attempts[attempt_id]
            if not self._wiring.checks_fence_of_reports:
                life, fence, boot_id, node_id = self.store.newest_of(life, fence, boot_id, node_id)
            event: attempts.Event = attempts.Started(node_id, fence, boot_id)
            if record is not None:
                verdict = classify(record, None if life.stop is None else life.stop.reason)
                ending = Verdict(verdict.cause, verdict.proof, verdict.is_cascade)
                event = attempts.Exited(node_id, fence, boot_id, ending)
            elif kind == "cleaned":
                event = attempts.Cleaned(node_id, fence, boot_id)
            elif kind == "ready":
                event = attempts.Ready(node_id, fence, boot_id)
            self.step_attempt(life, event)
        is_told_to_go = attempts.may_go(self.store.attempts[attempt_id], node_id)
        self.hosts[node_id].down.send(acknowledge, launch, attempt_id, phase, is_told_to_go)

    def take_commit(self, attempt_id: AttemptId, job_id: JobId, fence: Fence) -> None:
        """Take a program's checkpoint commit, only under the fence of the job's live attempt."""
        is_current = self.store.live_of_job.get(job_id) == attempt_id and self.store.attempts[attempt_id].fence == fence
        if is_current or not self._wiring.checks_fence_of_commits:
            self.store.truth.commits(job_id, fence)
            self.store.saved_ms[job_id] = self._kernel.now_ms

    def reconcile(self) -> None:
        """Let time pass for each open attempt and each pending job: decided now, changed a little later."""
        for job in tuple(self.store.jobs.values()):
            if job.state not in TERMINAL_JOB_STATES:
                waited = self._wiring.job_step(job, jobs.Tick(), self._kernel.now_ms, self.timers)[0]
                if waited is not job:
                    self.failpoint("reconcile.job.before_commit")
                    self.store.put_job(waited)
                    self.failpoint("reconcile.job.after_commit")
        tick = attempts.Tick(dict(self.store.hearings), self.started_ms)
        for attempt_id in tuple(self.store.open_attempts):
            life = self.store.attempts[attempt_id]
            after, _ = self._wiring.attempt_step(life, tick, self._kernel.now_ms, self.timers)
            if after is not life:
                delay_ms = 1 + int(self._random() * self._random() * self.timers.wake_again_ms)
                self._kernel.after(delay_ms, self.receive, self.tick_attempt, life, tick)

    def tick_attempt(self, seen: AttemptLifecycle, seen_tick: attempts.Tick) -> None:
        """Apply a tick. All is read again under the row's lock; the planted reaper uses its old reading."""
        if not self._wiring.compares_and_sets:
            self.step_attempt(seen, seen_tick)
            return
        life = self.store.attempts[seen.attempt_id]
        if life.state is not AttemptState.ENDED or life.attempt_id in self.store.open_attempts:
            self.step_attempt(life, attempts.Tick(self.store.hearings, self.started_ms))
