"""The supervisor of one attempt on one host, and its program. It outlives the launcher and ends with its machine."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from muster.domain.exit.exits import ExitRecord
from muster.domain.states import StopReason
from simulator.world.kernel import Action, Kernel
from simulator.world.settings import Settings
from simulator.world.store import Store
from simulator.world.truth import Run, require

_ALL_STOP_REASONS: Final = frozenset(StopReason)
_SIGTERM, _SIGKILL = 15, 9


@dataclass(frozen=True, slots=True)
class Program:
    """The course of a program. ``runs_ms`` None: it hangs; ``term_ms`` None: it ignores SIGTERM.

    ``prepares_ms`` None: its host hangs while it prepares; ``is_unready``: it finds that something is missing.
    """

    runs_ms: int | None
    exit_code: int
    term_ms: int | None
    death_ms: int
    linger_ms: int
    commit_every_ms: int
    prepares_ms: int | None
    is_unready: bool


def draw_program(rng: Random, settings: Settings) -> Program:
    beat_ms = settings.timers.heartbeat_ms
    margin_ms = settings.timers.kill_grace_ms // 3
    return Program(
        runs_ms=None if rng.random() < 0.15 else int(beat_ms * (0.2 + 80 * rng.random() ** 3)),
        exit_code=1 if rng.random() < 0.15 else 0,
        term_ms=None if rng.random() < 0.2 else int(rng.random() * settings.timers.stop_grace_ms * 1.2),
        death_ms=1 + int(rng.random() ** 2 * margin_ms * 0.8),
        linger_ms=0 if rng.random() < 0.7 else int(rng.random() * beat_ms),
        commit_every_ms=int(beat_ms * (1 + 4 * rng.random())),
        prepares_ms=None if rng.random() < settings.unready_rate / 4 else 1 + int(rng.random() ** 2 * beat_ms),
        is_unready=rng.random() < settings.unready_rate,
    )


@dataclass(frozen=True, slots=True)
class SupervisorHost:
    """The host of supervisors, with its own clock. ``commit``: sends a checkpoint's commit to the control plane."""

    kernel: Kernel
    settings: Settings
    store: Store
    clock: Callable[[], int]
    delay_until: Callable[[int], int]
    commit: Action
    fences_programs: bool


class Supervisor:
    """One supervisor. Times are by the host's own clock. ``exit_record`` is set once the program has ended."""

    __slots__ = (
        "_clock", "_commit", "_delay_until", "_kernel", "_program", "_settings", "_signalled", "_store",
        "exit_record", "fences_itself", "has_go", "is_dead", "is_ready", "is_self_fenced", "is_waiting", "kill_at_ms",
        "lease_until_ms", "name", "reason", "run",
    )  # fmt: skip

    def __init__(self, run: Run, program: Program, lease_until_ms: int, at: SupervisorHost) -> None:
        self.name = f"{run.node_id}/{run.attempt_id}"
        self.run, self._program, self.lease_until_ms = run, program, lease_until_ms
        self._kernel, self._settings, self._store = at.kernel, at.settings, at.store
        self._clock, self._delay_until, self._commit = at.clock, at.delay_until, at.commit
        self.exit_record: ExitRecord | None = None
        self.fences_itself = at.fences_programs
        self.is_self_fenced, self.is_dead, self._signalled = False, False, False
        self.is_waiting, self.is_ready, self.has_go = False, False, False
        self.kill_at_ms: int | None = None
        self.reason: str | None = None

    def prepare(self) -> None:
        """Prepare all but the program itself; the end of the lease or a stop may come while it waits."""
        if self.is_dead or self.exit_record is not None:
            return
        if self.reason is not None:
            self.refuse(self.reason)
            return
        self.is_waiting = True
        self._kernel.after(self._delay_until(self.lease_until_ms), self.check_lease)
        if self._program.prepares_ms is not None:
            self._kernel.after(self._program.prepares_ms, self.get_ready)

    def get_ready(self) -> None:
        if self.is_dead or self.exit_record is not None:
            return
        if self._program.is_unready:
            self.exit_record = ExitRecord(spawn_error="something is missing", spawn_fault="preflight")
            return
        self._store.truth.ready.add((self.run.attempt_id, self.run.node_id))
        self.is_ready = True

    def go(self) -> None:
        """Take the go: all hosts are ready.

        The order is on disk, so it counts for a supervisor that still prepares, too.
        """
        if not self.has_go:
            self.has_go, self.is_waiting = True, False
            self._kernel.after(1, self.begin)

    def begin(self) -> None:
        """Check lease and stop order for the last time, then start the program."""
        if self.is_dead or self.exit_record is not None:
            return
        if self.reason is not None or self._clock() >= self.lease_until_ms:
            self.refuse(self.reason or "lease")
            return
        self._store.truth.starts(self.run, self._store.holders)
        self._kernel.after(self._delay_until(self.lease_until_ms), self.check_lease)
        self._kernel.after(self._program.commit_every_ms, self.checkpoint)
        if self._program.runs_ms is not None:
            self._kernel.after(self._program.runs_ms, self.finish)

    def refuse(self, why: str) -> ExitRecord:
        """Record that the program never starts here, with the reason, and return the record."""
        record = ExitRecord(spawn_error=f"not started: {why}", spawn_fault="refused", stop_reason=why)
        self.exit_record = record
        return record

    def is_gone(self) -> bool:
        return (self.run.attempt_id, self.run.node_id) not in self._store.truth.present

    def finish(self) -> None:
        if self.exit_record is None and not self.is_dead and not self._signalled:
            self._ended(ExitRecord(launcher_exit_code=self._program.exit_code))

    def checkpoint(self) -> None:
        if self.exit_record is None and not self.is_dead:
            self._commit(self.run)
            self._kernel.after(self._program.commit_every_ms, self.checkpoint)

    def check_lease(self) -> None:
        """Stop at the end of the lease, which needs neither the launcher nor the control plane."""
        if self.exit_record is not None or self.is_dead or not self.fences_itself:
            return
        now_ms = self._clock()
        if now_ms < self.lease_until_ms:
            self._kernel.after(self._delay_until(self.lease_until_ms), self.check_lease)
        elif not self.is_self_fenced:
            self.is_self_fenced = True
            self.stop("lease", now_ms + self._settings.timers.kill_grace_ms)

    def stop(self, reason: str, kill_at_ms: int) -> None:
        """Stop at the earliest of the requested times, with its reason."""
        if self.exit_record is not None or self.is_dead:
            return
        if self.kill_at_ms is not None and self.kill_at_ms <= kill_at_ms:
            return
        self.is_self_fenced |= reason == "lease"
        self.kill_at_ms, self.reason = kill_at_ms, reason
        if self.is_waiting:
            self.refuse(reason)
            return
        if (self.run.attempt_id, self.run.node_id) not in self._store.truth.started:
            return  # not begun yet: ``begin`` checks
        if not self._signalled:
            self._signalled = True
            if self._program.term_ms is not None:
                self._kernel.after(self._program.term_ms, self.die, _SIGTERM)
        self._kernel.after(self._delay_until(kill_at_ms), self.kill)

    def kill(self) -> None:
        """Kill the program, never before the stored deadline by the server's clock, less its own clock's drift (I8)."""
        if self.exit_record is not None or self.is_dead or self.kill_at_ms is None or self._clock() < self.kill_at_ms:
            return
        stop = self._store.attempts[self.run.attempt_id].stop
        if self.reason in _ALL_STOP_REASONS:
            early_ms = 0 if stop is None else stop.deadline_ms - self._kernel.now_ms
            drift_ms = 1 + int(self._settings.timers.server_lease_ms * self._settings.drift_ppm / 500_000)
            require(early_ms <= drift_ms, "I8", f"{self.name} is killed {early_ms} ms before its deadline")
        self._kernel.after(self._program.death_ms, self.die, _SIGKILL)

    def die(self, number: int) -> None:
        if self.exit_record is None and not self.is_dead:
            self._ended(ExitRecord(launcher_signal=number, stop_reason=self.reason, self_fenced=self.is_self_fenced))

    def _ended(self, record: ExitRecord) -> None:
        place = (self.run.attempt_id, self.run.node_id)
        self.exit_record = record
        self._store.truth.ends(place)
        if self._program.linger_ms:
            self._kernel.after(self._program.linger_ms, self.vanish)
        else:
            self._store.truth.vanishes(place)

    def vanish(self) -> None:
        """Remove what the program left behind."""
        if not self.is_dead:
            self._store.truth.vanishes((self.run.attempt_id, self.run.node_id))

    def power_off(self) -> None:
        """Stop with the machine."""
        self.is_dead = True
        self._store.truth.vanishes((self.run.attempt_id, self.run.node_id))
