"""The decisions of a recorded world's scheduler other than placements: notices, holds, their ends, changes of size.

They are random, as the real scheduler might decide; each is carried out as the services do it, and recorded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from muster.domain.exit.causes import KEEPS_ITS_GPUS
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.lifecycle.attempt import part_of
from muster.domain.lifecycle.model import AttemptLifecycle
from muster.domain.state_sets import PARTS_THAT_MAY_RUN
from muster.domain.states import (
    RECLAIM_EDGES,
    AttemptState,
    Cause,
    JobState,
    ReclaimState,
    StopReason,
    require_edge,
)

if TYPE_CHECKING:
    from simulator.world.recording import RecordingServer

NOTICE_MS: Final = 60_000
GROW_GRACE_MS: Final = 20_000
"""Times of the policy under which a recorded history is played: a notice, and a change of size."""
PLACED: Final = "the job that it was for has been placed"
_SOON_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Given:
    """A notice that was committed. ``gpus``: that the victim gives; ``keeps``: with which its job continues."""

    beneficiary: JobId
    victim: AttemptId
    gpus: tuple[GpuUuid, ...]
    keeps: tuple[GpuUuid, ...]
    notified_ms: int
    deadline_ms: int
    delivered_ms: int | None = None
    hold_ended_ms: int | None = None
    settled_ms: int | None = None
    state: ReclaimState = ReclaimState.NOTIFIED

    @property
    def is_open(self) -> bool:
        return self.state is ReclaimState.NOTIFIED


class Changes:
    """The changes of one world.

    ``given``: every notice, in the order of their commits; ``wanted``: how many hosts a job requests.
    """

    def __init__(self, server: "RecordingServer") -> None:
        self._server, self._store = server, server.store
        self.given: list[Given] = []
        self.wanted: dict[JobId, int] = {}
        self._killed: set[tuple[AttemptId, NodeId]] = set()
        self._holders: dict[JobId, None] = {}

    def tidy(self, placing: JobId | None = None) -> None:
        """Release holds that no job needs any more; it comes before each decision, as in the scheduler's cycle.

        ``placing``: a job whose placement releases its hold.
        """
        idle = [job_id for job_id in self._holders if job_id != placing and not self._still_needs(job_id)]
        if idle:
            self._server.carry_out("elastic.let_go", "let_go", lambda: self._let_go(idle), is_one=len(idle) == 1)
        for job_id in self._beneficiaries():
            if job_id != placing and self._store.jobs[job_id].state is not JobState.QUEUED:
                self._lapse(job_id)

    def decide(self) -> None:
        """Run one cycle: at most one notice, lapses of holds, one growth, one change of size."""
        self.tidy()
        chance = self._server.rng
        queued = [job_id for job_id in self._holders if self._store.jobs[job_id].state is JobState.QUEUED]
        vain = [job_id for job_id in dict.fromkeys([*self._beneficiaries(), *queued]) if chance() < 0.15]
        for job_id in vain:
            self._lapse(job_id)
        self._withdraw_idle()
        if chance() < 0.5:
            self._notify()
        if chance() < 0.3:
            self._grow()
        if chance() < 0.05:
            self._resize()

    def ends(self) -> None:
        """Run the last cycle, when everything is idle."""
        self.tidy()
        self._withdraw_idle()

    def _beneficiaries(self) -> list[JobId]:
        return list(dict.fromkeys(one.beneficiary for one in self.given if one.hold_ended_ms is None))

    def _still_needs(self, job_id: JobId) -> bool:
        if job_id in self._beneficiaries():
            return True
        job, live = self._store.jobs[job_id], self._store.live_of_job.get(job_id)
        if job.state is JobState.ACTIVE:
            return live is not None and self._store.attempts[live].stop is not None
        soon_ms = self._server.now_ms + _SOON_MS
        is_tried_soon = job.state is JobState.RECOVERING and (job.next_try_ms is None or job.next_try_ms <= soon_ms)
        return job.state is JobState.QUEUED or is_tried_soon

    def _hold(self, job_id: JobId, gpus: Sequence[GpuUuid]) -> None:
        if any(gpu not in self._store.hold_of for gpu in gpus):
            self._store.hold(job_id, gpus)
            self._holders[job_id] = None

    def _let_go(self, idle: Sequence[JobId]) -> None:
        for job_id in idle:
            self._store.let_go(job_id, "its job is no longer pending")
            del self._holders[job_id]

    def _lapse(self, job_id: JobId) -> None:
        def lapse() -> None:
            self._store.let_go(job_id, "it waits without a result, or is no longer pending")
            self._holders.pop(job_id, None)
            self._end_hold(job_id)

        self._server.carry_out("reclaim.lapse", "lapse", lapse, arguments={"job_id": job_id})

    def _end_hold(self, job_id: JobId) -> None:
        self._move(
            (one for one in self.given if one.beneficiary == job_id and one.hold_ended_ms is None),
            hold_ended_ms=self._server.now_ms,
        )

    def _move(self, notices: Iterable[Given], **changes: object) -> None:
        for one in tuple(notices):
            after = replace(one, **changes)  # type: ignore[arg-type]  # fields by name
            if after.state is not one.state:
                require_edge(RECLAIM_EDGES, one.state, after.state)
            self.given[self.given.index(one)] = after

    def placed(self, job_id: JobId) -> None:
        self._holders.pop(job_id, None)
        self._end_hold(job_id)

    @staticmethod
    def _is_idle(one: Given) -> bool:
        return one.is_open and one.delivered_ms is None and one.hold_ended_ms is not None

    def _withdraw_idle(self) -> None:
        idle = [one for one in self.given if self._is_idle(one)]
        if idle:
            ends = {"state": ReclaimState.WITHDRAWN, "settled_ms": self._server.now_ms}
            is_one = len(idle) == 1
            self._server.carry_out("reclaim.withdraw", "withdraw", lambda: self._move(idle, **ends), is_one=is_one)

    def _notify(self) -> None:
        """Choose a beneficiary, and victims of a lower tier that together free some GPUs for it."""
        store, chance = self._store, self._server.rng
        waiting = [
            job_id
            for job_id, job in store.jobs.items()
            if job.state is JobState.QUEUED
            and store.rows[job_id].notice_ms is None
            and job_id not in self._beneficiaries()
        ]
        victims = [attempt_id for attempt_id in store.live_of_job.values() if self._may_be_taken(attempt_id)]
        if not waiting or not victims:
            return
        beneficiary = waiting[int(chance() * len(waiting))]
        chosen = [self._taken_from(victim) for victim in victims if chance() < 0.7] or [self._taken_from(victims[0])]
        held = tuple(gpu for _, gpus, _ in chosen for gpu in gpus if gpu not in store.hold_of)
        if held and all(self._server.is_live(self._server.node_of[gpu]) for gpu in held):
            said = {"beneficiary": beneficiary, "chosen": tuple(chosen), "assigned": held}
            self._server.carry_out(
                "reclaim.notify", "notify", partial(self._give, beneficiary, chosen, held), arguments=said
            )

    def _may_be_taken(self, attempt_id: AttemptId) -> bool:
        life = self._store.attempts[attempt_id]
        is_noted = any(one.victim == attempt_id and one.is_open for one in self.given)
        is_free = life.stop is None and life.ending is None and not is_noted
        return is_free and self._store.rows[life.job_id].notice_ms is not None

    def _taken_from(self, victim: AttemptId) -> tuple[AttemptId, tuple[GpuUuid, ...], tuple[GpuUuid, ...]]:
        """Return the victim, the GPUs that it gives and the ones that it keeps.

        An elastic one may continue on its first hosts.
        """
        parts = list(self._store.allocated[victim].values())
        fewest = self._store.rows[self._store.attempts[victim].job_id].min_nodes
        num_kept = fewest if fewest < len(parts) and self._server.rng() < 0.7 else 0
        given = tuple(gpu for part in parts[num_kept:] for gpu in part)
        return victim, given, tuple(gpu for part in parts[:num_kept] for gpu in part)

    def _give(
        self,
        beneficiary: JobId,
        chosen: Iterable[tuple[AttemptId, tuple[GpuUuid, ...], tuple[GpuUuid, ...]]],
        assigned: tuple[GpuUuid, ...],
    ) -> None:
        now_ms = self._server.now_ms
        self._hold(beneficiary, assigned)
        for victim, gpus, keeps in chosen:
            self.given.append(Given(beneficiary, victim, gpus, keeps, now_ms, now_ms + NOTICE_MS))
        for victim, _, _ in chosen:
            life = self._store.attempts[victim]
            running = [part.node_id for part in life.hosts if part.state in PARTS_THAT_MAY_RUN]
            if not running:
                self._notify_victim(victim)
            for node_id in running:
                self._server.wake(node_id)

    def notify_jobs_on(self, node_id: NodeId) -> None:
        """Deliver stop orders with the heartbeat's answer."""
        for attempt_id in tuple(self._store.open_on[node_id]):
            part = part_of(self._store.attempts[attempt_id], node_id)
            untold = [
                one for one in self.given if one.victim == attempt_id and one.is_open and one.delivered_ms is None
            ]
            if untold and untold[0].hold_ended_ms is None and part is not None and part.state in PARTS_THAT_MAY_RUN:
                self._notify_victim(attempt_id)

    def _notify_victim(self, victim: AttemptId) -> None:
        (notice,) = [one for one in self.given if one.victim == victim and one.is_open]
        self._move([notice], delivered_ms=self._server.now_ms)
        if notice.keeps:
            self._hold(self._store.attempts[victim].job_id, notice.keeps)
        rings = self._server.stop_in(victim, StopReason.RECLAIM, notice.deadline_ms - self._server.now_ms)
        self._server.send_wakeups(rings)

    def exits(self, attempt_id: AttemptId, node_id: NodeId, boot_id: str) -> None:
        """Record that SIGKILL ended the attempt's programs there."""
        part = part_of(self._store.attempts[attempt_id], node_id)
        if part is not None and part.state in PARTS_THAT_MAY_RUN and part.boot_id == boot_id:
            self._killed.add((attempt_id, node_id))

    def ended(self, life: AttemptLifecycle) -> None:
        """Settle the notice of an attempt that has ended, if it had one."""
        state = ReclaimState.OVERTAKEN
        if life.ending is not None and life.ending.cause is Cause.RECLAIMED:
            was_killed = any((life.attempt_id, part.node_id) in self._killed for part in life.hosts)
            state = ReclaimState.FORCED if was_killed else ReclaimState.RELEASED
        standing = (one for one in self.given if one.victim == life.attempt_id and one.is_open)
        self._move(standing, state=state, settled_ms=self._server.now_ms)
        self._keep(life)

    def _keep(self, life: AttemptLifecycle) -> None:
        """Keep the GPUs of an interrupted attempt for its job, except for hosts that were at fault."""
        is_tried_again = self._store.jobs[life.job_id].state is JobState.RECOVERING
        if life.ending is None or life.ending.cause not in KEEPS_ITS_GPUS or not is_tried_again:
            return
        at_fault = {part.node_id for part in life.hosts if part.is_at_fault}
        parts = self._store.allocated[life.attempt_id].items()
        self._hold(life.job_id, [gpu for node_id, part in parts if node_id not in at_fault for gpu in part])

    def _grow(self) -> None:
        """Let a running elastic gang leave for more hosts: its own, and free GPUs of others."""
        store = self._store
        for attempt_id in store.live_of_job.values():
            life = store.attempts[attempt_id]
            row, parts = store.rows[life.job_id], dict(store.allocated[attempt_id])
            most = self.wanted.get(life.job_id, row.nodes)
            is_steady = life.state is AttemptState.RUNNING and life.stop is None and life.ending is None
            for node_id, gpus in store.gpus.items():
                free = [gpu for gpu in gpus if gpu not in store.holders]
                if node_id not in parts and len(parts) < most and len(free) >= row.gpus_per_node:
                    parts[node_id] = tuple(free[: row.gpus_per_node])
            wanted = [gpu for part in parts.values() for gpu in part]
            is_open = all(map(self._server.is_live, parts)) and not any(gpu in store.hold_of for gpu in wanted)
            if is_steady and is_open and len(parts) > len(life.hosts):
                said = {"attempt_id": attempt_id, "job_id": life.job_id, "parts": parts, "was": len(life.hosts)}
                self._server.carry_out("elastic.grow", "grow", partial(self._leave, life, wanted), arguments=said)
                return

    def _resize(self) -> None:
        """Let a tenant request the fewest hosts, or as many as possible."""
        rows = [row for row in self._store.rows.values() if row.min_nodes < row.nodes]
        able = [row for row in rows if not self._server.is_over(row.job_id)]
        if able:
            row = able[int(self._server.rng() * len(able))]
            nodes = row.min_nodes if self._server.rng() < 0.7 else row.nodes
            said = {"job_id": row.job_id, "nodes": nodes}
            self._server.carry_out(
                "job.resize", "resize", partial(self._request_size, row.job_id, nodes), arguments=said
            )

    def _request_size(self, job_id: JobId, nodes: int) -> None:
        if self.wanted.get(job_id) == nodes:
            return
        self.wanted[job_id] = nodes
        live = self._store.live_of_job.get(job_id)
        if live is None:
            return
        life = self._store.attempts[live]
        if len(life.hosts) > nodes and life.stop is None and life.ending is None:
            kept = [gpu for part in list(self._store.allocated[live].values())[:nodes] for gpu in part]
            self._leave(life, [gpu for gpu in kept if gpu not in self._store.hold_of])

    def _leave(self, life: AttemptLifecycle, gpus: list[GpuUuid]) -> None:
        self._hold(life.job_id, gpus)
        grace_ms = max(GROW_GRACE_MS, life.stop_grace_ms)
        self._server.send_wakeups(self._server.stop_in(life.attempt_id, StopReason.RESIZE, grace_ms))
