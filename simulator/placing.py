"""The scheduler's two moments: select on a snapshot, commit a while later on whatever is so by then."""

from collections.abc import Mapping
from random import Random

from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.lifecycle import job as jobs
from muster.domain.lifecycle.model import AttemptLife, HostPart, JobLife
from muster.domain.states import JobState
from simulator.kernel import Kernel
from simulator.server import Server
from simulator.settings import Settings
from simulator.truth import require
from simulator.wiring import Wiring

Picks = Mapping[NodeId, tuple[GpuUuid, ...]]


class Placer:
    name = "placer"

    def __init__(self, kernel: Kernel, rng: Random, settings: Settings, wiring: Wiring, server: Server) -> None:
        self._kernel, self._rng, self._settings, self._wiring, self._server = kernel, rng, settings, wiring, server
        self._store = server.store
        self._num_attempts = 0
        self._shuffles = rng.random() < 0.5  # else the first hosts are preferred, and jobs come back to them

    def select(self) -> None:
        """Several rounds may be on their way at once, as with two schedulers."""
        taken: set[GpuUuid] = set()
        for job in self._store.jobs.values():
            if job.state is not JobState.QUEUED:
                continue
            picks = self._pick(job, taken)
            if picks is not None:
                taken.update(gpu for part in picks.values() for gpu in part)
                delay_ms = 1 + int(self._rng.random() ** 2 * 3 * self._settings.timers.heartbeat_ms)
                self._kernel.after(delay_ms, self._server.receive, self.commit, job, picks)

    def _pick(self, job: JobLife, taken: set[GpuUuid]) -> Picks | None:
        row = self._store.rows[job.job_id]
        fewest = row.min_nodes if self._wiring.keeps_to_sizes else 1
        room = self._store.ceiling_gpus - self._store.num_held(row.tenant)
        most = min(row.nodes, room // row.gpus_per_node)
        if most < fewest:
            return None
        nodes = list(self._store.gpus)
        if self._shuffles:
            self._rng.shuffle(nodes)
        picks: dict[NodeId, tuple[GpuUuid, ...]] = {}
        for node_id in nodes:
            free = [
                gpu
                for gpu in self._store.gpus[node_id]
                if gpu not in taken and self._refusal(node_id, gpu, job.job_id) is None
            ]
            if len(free) >= row.gpus_per_node:
                picks[node_id] = tuple(free[: row.gpus_per_node])
                if len(picks) >= most:
                    break
        return picks if len(picks) >= fewest else None

    def _refusal(self, node_id: NodeId, gpu: GpuUuid, job_id: JobId) -> str | None:
        if gpu in self._store.holders:
            return "held"
        if self._store.held_for.get(gpu, job_id) != job_id:
            return "held for another job"
        return self._not_admitted(node_id, gpu)

    def _not_admitted(self, node_id: NodeId, gpu: GpuUuid) -> str | None:
        if not self._store.is_admitted[gpu]:
            return "not admitted"
        if gpu in self._store.is_out:
            return "quarantined"
        hearing = self._store.hearings.get(node_id)
        silent_ms = self._settings.timers.lost_ms // 2
        is_live = hearing is not None and self._kernel.now_ms - hearing.heard_ms < silent_ms
        return None if is_live else "silent"

    def commit(self, seen: JobLife, picks: Picks) -> None:
        store, wiring = self._store, self._wiring
        job = store.jobs[seen.job_id]
        gpus = [(node_id, gpu) for node_id, part in picks.items() for gpu in part]
        if wiring.rechecks_snapshot and (job is not seen or any(gpu in store.holders for _, gpu in gpus)):
            return
        if wiring.rechecks_holds and any(store.held_for.get(gpu, job.job_id) != job.job_id for _, gpu in gpus):
            return
        if wiring.rechecks_admission and any(self._not_admitted(*gpu) for gpu in gpus):
            return
        row = store.rows[job.job_id]
        if wiring.rechecks_ceiling and store.num_held(row.tenant) + len(gpus) > store.ceiling_gpus:
            return
        after, _ = wiring.job_step(job, jobs.Placed(), self._kernel.now_ms, self._server.timers)
        self._server.failpoint("placement.place.before_commit")
        for place in gpus:
            why = self._not_admitted(*place)
            require(why is None, "I3", f"{place} is placed, but {why}")
        life = self._new_attempt(job, picks)
        store.insert_attempt(life, picks)
        store.put_job(after)
        self._server.placed(life, picks)
        self._server.failpoint("placement.place.after_commit")
        for node_id in picks:
            self._server.ring(node_id)

    def _new_attempt(self, job: JobLife, picks: Picks) -> AttemptLife:
        row = self._store.rows[job.job_id]
        self._num_attempts += 1
        return AttemptLife(
            attempt_id=AttemptId(f"att{self._num_attempts}"),
            job_id=job.job_id,
            fence=self._store.next_fence(),
            hosts=tuple(HostPart(node_id, rung_ms=self._kernel.now_ms) for node_id in picks),
            placed_ms=self._kernel.now_ms,
            on_node_loss=row.rule,
            stop_grace_ms=row.stop_grace_ms,
            wall_time_ms=row.wall_time_ms,
        )
