"""A history, recorded as the control plane met it, so that it can be played to the real one.

Such a world keeps the policy's own timers and leaves out everything that is not recorded: no judgement, and no crash
between two transactions of one request. If it dies, the whole request has had no effect, or it has full effect and is
not answered.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any, Final, cast

from muster.domain.exit.exits import ExitRecord
from muster.domain.ids import AttemptId, Fence, JobId, NodeId
from muster.domain.lifecycle import attempt as attempts
from muster.domain.lifecycle import job as jobs
from muster.domain.lifecycle.host import Phase
from muster.domain.lifecycle.model import AttemptLifecycle
from muster.domain.states import TERMINAL_JOB_STATES, AttemptState, StopReason
from simulator.world.kernel import Action
from simulator.world.placing import Picks
from simulator.world.recorded_changes import Changes
from simulator.world.server import Fact, HostAttempts, Server, ServerCrashedError
from simulator.world.settings import Settings, draw_settings
from simulator.world.store import JobRow
from simulator.world.wiring import TRUE_WIRING
from simulator.world.world import World

API_SILENCE_MS: Final = 30_000
"""A longer gap between two of the API's own beats counts as an outage."""
_WRITTEN_DOWN: Final = (
    "kill_launcher", "reboot", "cut_one_way", "cut_both_ways", "cancel", "stop_attempt", "drop_server",
)  # fmt: skip
_BEFORE, _AFTER = "before_commit", "after_commit"
_SIGKILL: Final = 9
_TIMES_AS_DEADLY: Final = {"heartbeat": 1, "reconcile": 1, "report": 2, "claim": 8, "submit": 8, "place": 8}


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the server took it: the method's name in ``RecordingServer`` and its arguments.

    ``died_at``: the failpoint at which the control plane died in it, if it did.
    """

    at_ms: int
    name: str
    arguments: dict[str, Any]
    died_at: str | None = None


class RecordingServer(Server):
    """The server with a record of its requests; time passes for all rows at once, as in the reconciler."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.calls: list[Call] = []
        self.started_ms = 0
        self.beat_ms = 0
        self.death_rate = 0.0
        self._is_committing = False
        self.node_of = {gpu: node_id for node_id, part in self.store.gpus.items() for gpu in part}
        self.changes = Changes(self)

    @property
    def now_ms(self) -> int:
        return self._kernel.now_ms

    def rng(self) -> float:
        return self._random()

    def is_over(self, job_id: JobId) -> bool:
        return self.store.jobs[job_id].state in TERMINAL_JOB_STATES

    def is_live(self, node_id: NodeId) -> bool:
        hearing = self.store.hearings.get(node_id)
        return hearing is not None and self.now_ms - hearing.received_ms < self.timers.lost_ms // 2

    def come_up(self) -> None:
        """Come up; the gap between two beats shows whether this was an outage."""
        started_ms = self.started_ms
        super().come_up()
        self.started_ms = started_ms

    def failpoint(self, name: str) -> None:
        """Do nothing: whether it dies is drawn for each request as a whole."""

    def carry_out(
        self,
        action: str,
        name: str,
        work: Callable[[], object],
        *,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        is_one: bool = True,
    ) -> None:
        """Carry out one request. ``is_one``: one unit of work does it; with none, or several, nothing dies."""
        edge = self._death(name) if is_one else None
        died_at = None if edge is None else f"{action}.{edge}"
        self.calls.append(Call(self.now_ms, name, dict(arguments), died_at))
        if edge != _BEFORE:
            with self._unanswered(is_so=edge is not None):
                work()
        if died_at is not None:
            self.crashes[died_at] += 1
            raise ServerCrashedError

    def _death(self, name: str) -> str | None:
        """Return the failpoint at which the request dies, if any: rare requests die more often."""
        if self._is_committing or self._random() >= min(0.5, self.death_rate * _TIMES_AS_DEADLY.get(name, 50)):
            return None
        return _BEFORE if self._random() < 0.5 else _AFTER

    @contextmanager
    def _unanswered(self, *, is_so: bool) -> Iterator[None]:
        """Lose all messages that are sent inside the context, as with a process that dies."""
        if not is_so:
            yield
            return
        wires = [wire for host in self.hosts.values() for wire in (host.down, host.wakeup)]
        before = [wire.cut_until_ms for wire in wires]
        for wire in wires:
            wire.cut_until_ms = self.now_ms + 1
        yield
        for wire, until_ms in zip(wires, before, strict=True):
            wire.cut_until_ms = until_ms

    def submit(self, row: JobRow, max_restarts: int, acknowledge: Action) -> None:
        if row.key in self.store.job_of_key:
            super().submit(row, max_restarts, acknowledge)
            return
        take = super().submit
        said = {"row": row, "max_restarts": max_restarts}
        self.carry_out("job.submit", "submit", lambda: take(row, max_restarts, lambda _: None), arguments=said)
        acknowledge(row)

    def placed(self, life: AttemptLifecycle, picks: Picks) -> None:
        """Record the commit; if the scheduler dies before it, the next one commits the same."""
        edge = self._death("place")
        self._is_committing = True
        self.changes.tidy(life.job_id)
        self._is_committing = False
        said = {"job_id": life.job_id, "attempt_id": life.attempt_id, "picks": picks}
        if edge is not None:
            self.crashes[f"placement.place.{edge}"] += 1
        if edge == _BEFORE:
            self.calls.append(Call(self.now_ms, "place", said, f"placement.place.{_BEFORE}"))
        died_at = f"placement.place.{_AFTER}" if edge == _AFTER else None
        self.calls.append(Call(self.now_ms, "place", said, died_at))
        self.changes.placed(life.job_id)
        if edge == _AFTER:
            raise ServerCrashedError

    def cancel(self, job_id: JobId) -> None:
        if not self.is_over(job_id):
            cancel = super().cancel
            self.carry_out("job.cancel", "cancel", lambda: cancel(job_id), arguments={"job_id": job_id})

    def stop(self, attempt_id: AttemptId, reason: StopReason, grace_ms: int) -> None:
        if attempt_id in self.store.live_of_job.values():
            stop = super().stop
            said = {"attempt_id": attempt_id, "reason": reason, "grace_ms": grace_ms}
            self.carry_out("reconcile.attempt", "stop", partial(stop, attempt_id, reason, grace_ms), arguments=said)

    def heartbeat(
        self, node_id: NodeId, boot_id: str, seq: int, on_host: HostAttempts, sent_ms: int, launch: int,
        is_woken: bool,  # noqa: FBT001  # as the server has it
    ) -> None:  # fmt: skip
        if boot_id not in self.store.known_boots and not self.hosts[node_id].is_boot(boot_id):
            return
        hear = super().heartbeat
        work = partial(hear, node_id, boot_id, seq, on_host, sent_ms, launch, is_woken)
        said = {"node_id": node_id, "boot_id": boot_id, "seq": seq, "assigned": on_host}
        self.carry_out("host.heartbeat", "heartbeat", work, arguments=said)

    def _orders(self, node_id: NodeId, on_host: HostAttempts) -> tuple[Any, tuple[AttemptId, ...]]:
        self.changes.notify_jobs_on(node_id)
        return super()._orders(node_id, on_host)

    def claim(
        self, node_id: NodeId, attempt_id: AttemptId, fence: Fence, boot_id: str, sent_ms: int, launch: int,
        can_wait: bool,  # noqa: FBT001  # as the server has it
    ) -> None:  # fmt: skip
        work = partial(super().claim, node_id, attempt_id, fence, boot_id, sent_ms, launch, can_wait)
        said = {"node_id": node_id, "attempt_id": attempt_id, "boot_id": boot_id, "can_wait": can_wait}
        self.carry_out("host.claim", "claim", work, arguments=said)

    def report(
        self, node_id: NodeId, attempt_id: AttemptId, fence: Fence, boot_id: str, facts: tuple[Fact, ...],
        acknowledge: Action, launch: int, phase: Phase,
    ) -> None:  # fmt: skip
        report = partial(super().report, node_id, attempt_id, fence, boot_id, facts, acknowledge, launch, phase)

        def take() -> None:
            if any(record is not None and _was_killed(record) for _, record in facts):
                self.changes.exits(attempt_id, node_id, boot_id)
            report()

        said = {"node_id": node_id, "attempt_id": attempt_id, "boot_id": boot_id, "facts": facts}
        self.carry_out("host.report", "report", take, arguments=said)

    def reconcile(self) -> None:
        if self.now_ms - self.beat_ms > API_SILENCE_MS:
            self.started_ms = self.now_ms
        self.beat_ms = self.now_ms
        self.carry_out("reconcile.contact", "reconcile", lambda: None)
        self._let_time_pass()  # if it died in the first unit of work of its round, the rest is not done
        self.changes.decide()

    def _let_time_pass(self) -> None:
        for job in tuple(self.store.jobs.values()):
            if job.state not in TERMINAL_JOB_STATES:
                self.store.put_job(jobs.step(job, jobs.Tick(), self.now_ms, self.timers)[0])
        for attempt_id in tuple(self.store.open_attempts):
            tick = attempts.Tick(dict(self.store.hearings), self.started_ms)
            self.step_attempt(self.store.attempts[attempt_id], tick)

    def _apply(self, before: AttemptLifecycle, after: AttemptLifecycle, commands: tuple[attempts.Command, ...]) -> None:
        super()._apply(before, after, commands)
        if after.state is AttemptState.ENDED and before.state is not AttemptState.ENDED:
            self.changes.ended(after)


def _was_killed(record: ExitRecord) -> bool:
    return _SIGKILL in {record.launcher_signal, *(rank.signal for rank in record.ranks.values())}


class RecordedWorld(World):
    """The recorded world. ``calls``: its history, once it has run."""

    server_type = RecordingServer
    is_planned = False
    has_node_faults = False

    def draw_settings(self, rng: Random) -> Settings:
        settings = draw_settings(rng, scale=1.0)
        weights = {kind: rng.random() for kind in _WRITTEN_DOWN}
        return replace(
            settings,
            num_hosts=rng.randint(2, 3),
            gpus_per_host=rng.randint(1, 2),
            num_jobs=rng.randint(2, 4),
            horizon_ms=settings.timers.heartbeat_ms * 60,
            crash_rates={},
            fault_weights=weights,
            ceiling_gpus=1 << 30,
            checks_single=False,
        )

    def run(self) -> None:
        recorder = self.recorder
        recorder.death_rate = self.rng.choice((0.0, 0.0, 0.01, 0.05))
        self.kernel.after(self.settings.horizon_ms, self._spare)
        super().run()
        recorder.changes.ends()

    def _spare(self) -> None:
        self.recorder.death_rate = 0.0

    @property
    def recorder(self) -> RecordingServer:
        return cast("RecordingServer", self.server)

    @property
    def calls(self) -> list[Call]:
        return self.recorder.calls


def recorded(seed: int) -> RecordedWorld:
    """Return the world of that seed, at its end.

    Raises:
        ViolationError: an invariant broke.
    """
    world = RecordedWorld(seed, TRUE_WIRING)
    world.run()
    return world
