"""One GPU host: a launcher that may die at any point, its disk, its supervisors, its clock, its reboots."""

from collections.abc import Callable
from random import Random
from typing import Final

from muster.domain.ids import AttemptId, NodeId
from muster.domain.lifecycle import host
from muster.domain.lifecycle.host import HostLedger, HostRecord, Phase
from muster.domain.lifecycle.model import AttemptLifecycle
from simulator.world.clocks import HostClock
from simulator.world.kernel import Kernel
from simulator.world.network import Wire
from simulator.world.server import Fact, HostAttempts, Server
from simulator.world.settings import Settings
from simulator.world.supervisors import Program, Supervisor, SupervisorHost, draw_program
from simulator.world.truth import Run
from simulator.world.wiring import Wiring

_TICK: Final = host.Tick()
_CLAIMED, _STARTED, _EXITED, _CLEAN = Phase.CLAIMED, Phase.STARTED, Phase.EXITED, Phase.CLEAN


class LauncherKilledError(Exception):
    """The launcher's process dies here."""


class Host:
    def __init__(
        self, node_id: NodeId, kernel: Kernel, rng: Random, settings: Settings, wiring: Wiring, server: Server
    ) -> None:
        self.node_id, self.name = node_id, node_id
        self.up, self.down = Wire(kernel, rng, settings), Wire(kernel, rng, settings)
        self.wakeup = Wire(kernel, rng, settings, is_good=settings.has_broker)
        self.disk = HostLedger("")
        self.supervisors: dict[AttemptId, Supervisor] = {}
        self.crash_rate = settings.crash_rate
        self.is_on = False
        self.launch = 0
        self._is_launcher_alive = False
        self._kernel, self._rng, self._settings, self._wiring, self._server = kernel, rng, settings, wiring, server
        self._boot_number = 0
        pace = 1 + rng.uniform(-1, 1) * settings.drift_ppm / 1_000_000
        self.time = HostClock(kernel, pace, counts_by_wall=wiring.leases_by_wall_clock)
        self.clock, self.delay_until = self.time.since_boot, self.time.delay_until
        self._random = rng.random
        self.can_wait = rng.random() >= settings.old_rate
        self._programs: dict[AttemptId, Program] = {}
        self._handlers: dict[type[host.Command], Callable[..., None]] = {
            host.SendClaim: self._send_claim,
            host.Prepare: self._prepare,
            host.StartProgram: self._start_program,
            host.StopProgram: self._stop_program,
            host.ExtendLease: self._extend_lease,
            host.ProveClean: self._prove_clean,
            host.Report: self._note_report,
            host.Forget: self._forget,
        }

    def boot(self) -> None:
        """Power the host on: a new boot id, a clock from zero, no programs; the disk is unchanged."""
        if self.is_on:
            return
        self.is_on = True
        self._boot_number += 1
        self._boot_id = f"{self.node_id}-boot{self._boot_number}"
        self.time.boot()
        self.start_launcher()

    def is_boot(self, boot_id: str) -> bool:
        return self._boot_id == boot_id

    def power_off(self, for_ms: int) -> None:
        if self.is_on:
            self.is_on = self._is_launcher_alive = False
            for supervisor in self.supervisors.values():
                supervisor.power_off()
            self.supervisors = {}
            self._kernel.after(for_ms, self.boot)

    def kill_launcher(self, for_ms: int) -> None:
        if self._is_launcher_alive:
            self._is_launcher_alive = False
            self._kernel.after(for_ms, self.start_launcher)

    def start_launcher(self) -> None:
        if not self.is_on or self._is_launcher_alive:
            return
        self._is_launcher_alive = True
        self.launch += 1
        self._seq, self._next_beat_ms, self._next_report_ms = 0, 0, 0
        self._unreported: dict[AttemptId, None] = {}
        self._reported: tuple[HostLedger | None, HostAttempts] = (None, ())
        self._live(self._adopt)
        self.turn(self.launch)

    def _adopt(self) -> None:
        self.ledger, commands = self._wiring.host_restarted(self.disk, self._boot_id)
        self.disk = self.ledger
        self._carry_out(commands)

    def _live(self, action: Callable[..., None], *args: object) -> None:
        try:
            action(*args)
        except LauncherKilledError:
            self.kill_launcher(int(self._random() * 4 * self._settings.timers.heartbeat_ms))

    def turn(self, launch: int) -> None:
        """Run one round of the launcher that was started as number ``launch``."""
        if launch == self.launch and self._is_launcher_alive:
            self._kernel.after(self._settings.turn_ms, self.turn, launch)
            self._live(self._turn)

    def on_wakeup(self) -> None:
        if self._is_launcher_alive:
            self._live(self._beat, True)

    def on_answer(self, launch: int, event: host.Event) -> None:
        """Handle an answer if the process that asked still lives."""
        if launch == self.launch and self._is_launcher_alive:
            self._live(self._apply, event)

    def on_taken(self, launch: int, attempt_id: AttemptId, phase: Phase, may_go: bool) -> None:  # noqa: FBT001  # by place, as all that crosses the wire
        """Handle the server's receipt of a report that was sent when the record was in ``phase``."""
        record = self.ledger.records.get(attempt_id) if launch == self.launch and self._is_launcher_alive else None
        if record is not None and record.phase is phase:
            self._unreported.pop(attempt_id, None)
            if phase is _CLEAN:
                self._next_beat_ms = 0
            if may_go:
                self._live(self._apply, host.GoReceived(attempt_id))

    def _turn(self) -> None:
        now_ms = self.clock()
        if now_ms >= self._next_beat_ms:
            self._beat(False)
        if self.ledger.records:
            self._check_programs()
            self._apply(_TICK)
            if self._unreported and now_ms >= self._next_report_ms:
                self._send_reports(now_ms)

    def _beat(self, is_woken: bool) -> None:  # noqa: FBT001  # called from one place each
        sent_ms = self.clock()
        self._seq += 1
        self._next_beat_ms = sent_ms + int(self._settings.timers.heartbeat_ms * (0.9 + 0.2 * self._random()))
        if self._reported[0] is not self.ledger:
            held = tuple((record.attempt_id, record.fence, record.phase) for record in self.ledger.records.values())
            self._reported = (self.ledger, held)
        number = sent_ms * 64 + self._seq % 64
        self.up.send(
            self._server.receive, self._server.heartbeat,
            self.node_id, self._boot_id, number, self._reported[1], sent_ms, self.launch, is_woken,
        )  # fmt: skip

    def _apply(self, event: host.Event) -> None:
        """Apply the event: the ledger is on disk before a command is carried out."""
        before = self.ledger
        after, commands = self._wiring.host_step(before, event, self.clock())
        if after is not before:
            self._failpoint()
            self.ledger = after
            if self._wiring.persists_before_acting:
                self.disk = after
        if commands:
            self._carry_out(commands)
        if after is not before and not self._wiring.persists_before_acting:
            self._failpoint()
            self.disk = self.ledger

    def _carry_out(self, commands: tuple[host.Command, ...]) -> None:
        for command in commands:
            self._failpoint()
            self._handlers[type(command)](command)

    def _failpoint(self) -> None:
        if self.crash_rate and self._random() < self.crash_rate:
            raise LauncherKilledError

    def _send_claim(self, command: host.SendClaim) -> None:
        self.up.send(
            self._server.receive, self._server.claim,
            self.node_id, command.attempt_id, command.fence, self._boot_id, self.clock(), self.launch, self.can_wait,
        )  # fmt: skip

    def _prepare(self, command: host.Prepare) -> None:
        record = self.ledger.records[command.attempt_id]
        if command.attempt_id not in self.supervisors:
            supervisor = self._new_supervisor(record)
            self._begin(record, supervisor.prepare, is_allowed=host.may_prepare(record, self.clock()))
        self._check(record)

    def _start_program(self, command: host.StartProgram) -> None:
        record = self.ledger.records[command.attempt_id]
        supervisor = self.supervisors.get(command.attempt_id)
        if supervisor is None:
            supervisor = self._new_supervisor(record)
            self._begin(record, supervisor.begin, is_allowed=host.may_start(record, self.clock()))
        elif supervisor.is_waiting and host.may_start(record, self.clock()):
            supervisor.go()
        self._check(record)

    def _begin(self, record: HostRecord, action: Callable[[], None], *, is_allowed: bool) -> None:
        if is_allowed:
            self._kernel.after(1 + int(50 * self._random()), action)
        else:
            self.supervisors[record.attempt_id].refuse(record.stop_reason or "lease")

    def _new_supervisor(self, record: HostRecord) -> Supervisor:
        store = self._server.store
        life, gpus = store.attempts[record.attempt_id], store.allocated[record.attempt_id][self.node_id]
        run = Run(life.job_id, life.attempt_id, self.node_id, life.fence, gpus, life.on_node_loss, self._awaited(life))
        program = draw_program(self._rng, self._settings)
        at = SupervisorHost(
            self._kernel, self._settings, store, self.clock, self.delay_until, self._commit,
            fences_programs=self._wiring.supervisors_fence_themselves,
        )  # fmt: skip
        supervisor = Supervisor(run, program, record.lease_until_ms, at)
        self.supervisors[record.attempt_id] = supervisor
        return supervisor

    def _awaited(self, life: AttemptLifecycle) -> tuple[NodeId, ...]:
        """Return all hosts of its gang that can wait; a host that cannot starts when granted, and waits for none."""
        if not self.can_wait or len(life.hosts) == 1:
            return ()
        return tuple(part.node_id for part in life.hosts if self._server.hosts[part.node_id].can_wait)

    def _commit(self, run: Run) -> None:
        """Send a checkpoint's commit to the control plane, as the program does itself."""
        self.up.send(self._server.receive, self._server.take_commit, run.attempt_id, run.job_id, run.fence)
        life = self._server.store.attempts[run.attempt_id]
        if life.hosts[0].node_id == self.node_id:
            took_ms = self._settings.timers.heartbeat_ms
            self._server.store.times.trained(run.attempt_id, self.time.wall(), took_ms)

    def _stop_program(self, command: host.StopProgram) -> None:
        supervisor = self.supervisors.get(command.attempt_id)
        if supervisor is None:
            self._new_supervisor(self.ledger.records[command.attempt_id]).refuse(command.reason)
        else:
            supervisor.stop(command.reason, command.kill_at_ms)

    def _extend_lease(self, command: host.ExtendLease) -> None:
        supervisor = self.supervisors.get(command.attempt_id)
        if supervisor is not None:
            supervisor.lease_until_ms = command.lease_until_ms

    def _prove_clean(self, command: host.ProveClean) -> None:
        supervisor = self.supervisors.get(command.attempt_id)
        if supervisor is None or supervisor.is_gone() or not self._wiring.checks_before_clean:
            self._apply(host.ProvedClean(command.attempt_id))

    def _check_programs(self) -> None:
        for record in tuple(self.ledger.records.values()):
            if record.phase is _STARTED or record.phase is _CLAIMED:
                self._check(record)
            elif record.phase is _EXITED:
                self._prove_clean(host.ProveClean(record.attempt_id))

    def _check(self, record: HostRecord) -> None:
        supervisor = self.supervisors.get(record.attempt_id)
        if supervisor is None:
            return
        if record.phase is _CLAIMED and (supervisor.has_go or not record.awaits_go):
            self._apply(host.ProgramStarted(record.attempt_id))
        elif supervisor.is_ready and not record.is_ready:
            self._apply(host.HostReady(record.attempt_id))
        if supervisor.exit_record is not None:
            self._apply(host.ProgramExited(record.attempt_id))

    def _note_report(self, command: host.Report) -> None:
        self._unreported[command.attempt_id] = None
        self._next_report_ms = 0

    def _send_reports(self, now_ms: int) -> None:
        self._next_report_ms = now_ms + self._settings.timers.heartbeat_ms
        for attempt_id in tuple(self._unreported):
            record = self.ledger.records.get(attempt_id)
            if record is None:
                del self._unreported[attempt_id]
                continue
            self.up.send(
                self._server.receive, self._server.report, self.node_id, attempt_id, record.fence, record.boot_id,
                self._facts(record), self.on_taken, self.launch, record.phase,
            )  # fmt: skip

    def _facts(self, record: HostRecord) -> tuple[Fact, ...]:
        """Return all known facts, in order, from the first on: earlier reports may have been lost."""
        facts: list[Fact] = [("ready", None)] if record.is_ready else []
        facts += [("started", None)] if record.has_started else []
        if record.phase in {_EXITED, _CLEAN}:
            supervisor = self.supervisors.get(record.attempt_id)
            if supervisor is None:
                supervisor = self._new_supervisor(record)
            record_of_end = supervisor.exit_record or supervisor.refuse("lease")
            facts.append(("exited", record_of_end))
        if record.phase is _CLEAN:
            facts.append(("cleaned", None))
        return tuple(facts)

    def _forget(self, command: host.Forget) -> None:
        self._unreported.pop(command.attempt_id, None)
