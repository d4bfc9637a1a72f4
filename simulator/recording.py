"""A history written down as the control plane met it, so that it can be played to the real one.

Such a world keeps the policy's own timers and none of what is not written down: no crash between two transactions of
one request, no outage of the control plane, no judgement, no reclaim, no change of size.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, cast

from muster.domain.ids import AttemptId, Fence, JobId, NodeId
from muster.domain.lifecycle import attempt as attempts
from muster.domain.lifecycle import job as jobs
from muster.domain.lifecycle.host import Phase
from muster.domain.lifecycle.model import AttemptLife
from muster.domain.states import TERMINAL_JOB_STATES, StopReason
from simulator.kernel import Action
from simulator.placing import Picks
from simulator.server import Fact, Held, Server
from simulator.settings import Settings, draw_settings
from simulator.store import JobRow
from simulator.wiring import TRUE_WIRING
from simulator.world import World

_WRITTEN_DOWN: Final = (
    "kill_launcher", "reboot", "cut_one_way", "cut_both_ways", "cancel", "stop_attempt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the server took it: the method's name in ``RecordingServer`` and what it was called with."""

    at_ms: int
    name: str
    said: dict[str, Any]


class RecordingServer(Server):
    """The same server; what it takes is noted, and time is let pass for all at once, as the reconciler does."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.calls: list[Call] = []
        self.started_ms = 0

    def _note(self, name: str, **said: Any) -> None:
        self.calls.append(Call(self._kernel.now_ms, name, said))

    def submit(self, row: JobRow, max_restarts: int, acknowledge: Action) -> None:
        if row.key not in self.store.job_of_key:
            self._note("submit", row=row, max_restarts=max_restarts)
        super().submit(row, max_restarts, acknowledge)

    def placed(self, life: AttemptLife, picks: Picks) -> None:
        self._note("place", job_id=life.job_id, attempt_id=life.attempt_id, picks=picks)

    def cancel(self, job_id: JobId) -> None:
        if self.store.jobs[job_id].state not in TERMINAL_JOB_STATES:
            self._note("cancel", job_id=job_id)
        super().cancel(job_id)

    def stop(self, attempt_id: AttemptId, reason: StopReason, grace_ms: int) -> None:
        if attempt_id in self.store.live_of_job.values():
            self._note("stop", attempt_id=attempt_id, reason=reason, grace_ms=grace_ms)
        super().stop(attempt_id, reason, grace_ms)

    def heartbeat(
        self, node_id: NodeId, boot_id: str, seq: int, held: Held, sent_ms: int, launch: int,
        is_rung: bool,  # noqa: FBT001  # as the server has it
    ) -> None:  # fmt: skip
        if boot_id in self.store.heard_boots or self.hosts[node_id].is_boot(boot_id):
            self._note("heartbeat", node_id=node_id, boot_id=boot_id, seq=seq, held=held)
        super().heartbeat(node_id, boot_id, seq, held, sent_ms, launch, is_rung)

    def claim(
        self, node_id: NodeId, attempt_id: AttemptId, fence: Fence, boot_id: str, sent_ms: int, launch: int,
        can_wait: bool,  # noqa: FBT001  # as the server has it
    ) -> None:  # fmt: skip
        self._note("claim", node_id=node_id, attempt_id=attempt_id, boot_id=boot_id, can_wait=can_wait)
        super().claim(node_id, attempt_id, fence, boot_id, sent_ms, launch, can_wait)

    def report(
        self, node_id: NodeId, attempt_id: AttemptId, fence: Fence, boot_id: str, facts: tuple[Fact, ...],
        acknowledge: Action, launch: int, phase: Phase,
    ) -> None:  # fmt: skip
        self._note("report", node_id=node_id, attempt_id=attempt_id, boot_id=boot_id, facts=facts)
        super().report(node_id, attempt_id, fence, boot_id, facts, acknowledge, launch, phase)

    def reconcile(self) -> None:
        self._note("reconcile")
        for job in tuple(self.store.jobs.values()):
            if job.state not in TERMINAL_JOB_STATES:
                self.store.put_job(jobs.step(job, jobs.Tick(), self._kernel.now_ms, self.timers)[0])
        for attempt_id in tuple(self.store.open_attempts):
            tick = attempts.Tick(dict(self.store.hearings), self.started_ms)
            self.step_attempt(self.store.attempts[attempt_id], tick)


class RecordedWorld(World):
    """``calls``: its history, once it has run."""

    server_type = RecordingServer
    is_planned = False

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

    @property
    def calls(self) -> list[Call]:
        return cast("RecordingServer", self.server).calls


def recorded(seed: int) -> RecordedWorld:
    """The world of that seed, at its end.

    Raises:
        ViolationError: an invariant broke.
    """
    world = RecordedWorld(seed, TRUE_WIRING)
    world.run()
    return world
