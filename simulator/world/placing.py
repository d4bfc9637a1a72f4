"""The commit of a placement, which checks again everything that mattered when its GPUs were selected."""

from collections.abc import Mapping, Sequence
from typing import Final

from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.lifecycle import job as jobs
from muster.domain.lifecycle.model import AttemptLifecycle, HostPart, JobLifecycle
from simulator.world.kernel import Kernel
from simulator.world.places import fault_of_place, over_quota
from simulator.world.rows import JobRow
from simulator.world.server import Server
from simulator.world.settings import Settings
from simulator.world.truth import require
from simulator.world.wiring import Wiring

Picks = Mapping[NodeId, tuple[GpuUuid, ...]]
"""GPUs by node, in rank order."""
_PLACE: Final = "placement.place"


class Placer:
    """The commits of placements. ``num_lost``: commits whose snapshot was no longer true."""

    name = "placer"

    def __init__(self, kernel: Kernel, settings: Settings, wiring: Wiring, server: Server) -> None:
        self._kernel, self._settings, self._wiring, self._server = kernel, settings, wiring, server
        self._store = server.store
        self._num_attempts = 0
        self.num_lost = 0

    def refusal(self, node_id: NodeId, gpu: GpuUuid, job_id: JobId) -> str | None:
        """Return why the job may not have this GPU now; None: it may."""
        if gpu in self._store.holders:
            return "held"
        if self._store.hold_of.get(gpu, job_id) != job_id:
            return "held for another job"
        return self.not_admitted(node_id, gpu, self._store.rows[job_id])

    def not_admitted(self, node_id: NodeId, gpu: GpuUuid, row: JobRow) -> str | None:
        if not self._store.is_admitted[gpu]:
            return "not admitted"
        if gpu in self._store.is_out:
            return "quarantined"
        if node_id in self._store.nodes_on_hold:
            return "on a node with a rule cordon"
        if self._store.rules.is_planned and (why := self._against_rules(node_id, gpu, row)):
            return why
        return None if self.is_live(node_id) else "silent"

    def _against_rules(self, node_id: NodeId, gpu: GpuUuid, row: JobRow) -> str | None:
        tier, standing = self._store.rules.policy.tier(row.tier), self._store.cases[gpu].standing
        if not self._store.is_calm and standing not in tier.standings:
            return f"{standing}, which is not for {row.tier}"
        is_worked_on = any(
            window.node_id == node_id and window.starts_ms <= self._kernel.now_ms for window in self._store.windows()
        )
        return "worked on" if is_worked_on else None

    def is_live(self, node_id: NodeId) -> bool:
        hearing = self._store.hearings.get(node_id)
        silent_ms = self._settings.timers.lost_ms // 2
        return hearing is not None and self._kernel.now_ms - hearing.received_ms < silent_ms

    def is_over_quota(self, row: JobRow, num_gpus: int, *, alongside: JobId | None = None) -> bool:
        """Return whether so many more GPUs exceed a quota.

        ``alongside``: a job; if given, the GPUs that are kept for all other pending jobs count too.
        """
        if self._store.num_assigned(row.tenant) + num_gpus > self._store.ceiling_gpus:
            return True
        held = self._store.assigned_by_tenant_and_tier()
        for tenant, tier in () if alongside is None else self._store.kept_alongside(alongside):
            held[tenant, tier] = held.get((tenant, tier), 0) + 1
        held[row.tenant, row.tier] = held.get((row.tenant, row.tier), 0) + num_gpus
        return over_quota(self._store.rules, held, row) is not None

    def commit(self, seen: JobLifecycle, picks: Picks) -> None:
        store, wiring = self._store, self._wiring
        job = store.jobs[seen.job_id]
        row = store.rows[job.job_id]
        gpus = [(node_id, gpu) for node_id, part in picks.items() for gpu in part]
        if self._is_lost(seen, row, gpus) or self._is_no_place(row, list(picks)):
            self.num_lost += 1
            return
        after, _ = wiring.job_step(job, jobs.Placed(), self._kernel.now_ms, self._server.timers)
        self._server.failpoint(f"{_PLACE}.before_commit")
        for place in gpus:
            why = self.not_admitted(*place, row)
            require(why is None, "I3", f"{place} is placed, but {why}")
        life = self._new_attempt(job, picks)
        store.insert_attempt(life, picks)
        store.put_job(after)
        self._server.placed(life, picks)
        self._server.failpoint(f"{_PLACE}.after_commit")
        for node_id in picks:
            self._server.wake(node_id)

    def _is_lost(self, seen: JobLifecycle, row: JobRow, gpus: Sequence[tuple[NodeId, GpuUuid]]) -> bool:
        store, wiring, job_id = self._store, self._wiring, seen.job_id
        is_as_seen = store.jobs[job_id] is seen and not any(gpu in store.holders for _, gpu in gpus)
        if wiring.rechecks_snapshot and not is_as_seen:
            return True
        promised = [gpu for _, gpu in gpus if store.hold_of.get(gpu, job_id) != job_id]
        if any(wiring.rechecks_kept if gpu in store.kept.job_of else wiring.rechecks_holds for gpu in promised):
            return True
        if wiring.rechecks_admission and any(self.not_admitted(*gpu, row) for gpu in gpus):
            return True
        return wiring.rechecks_ceiling and self.is_over_quota(row, len(gpus))

    def _is_no_place(self, row: JobRow, nodes: Sequence[NodeId]) -> bool:
        """Return whether the place is invalid, which no sound scheduler requests: no host changes its domain here."""
        if self._wiring.rechecks_places and fault_of_place(self._store.rules, row, nodes) is not None:
            return True
        return self._wiring.keeps_to_sizes and not row.min_nodes <= len(nodes) <= row.most_nodes

    def _new_attempt(self, job: JobLifecycle, picks: Picks) -> AttemptLifecycle:
        row = self._store.rows[job.job_id]
        self._num_attempts += 1
        return AttemptLifecycle(
            attempt_id=AttemptId(f"att{self._num_attempts}"),
            job_id=job.job_id,
            fence=self._store.next_fence(),
            hosts=tuple(HostPart(node_id, woken_ms=self._kernel.now_ms) for node_id in picks),
            placed_ms=self._kernel.now_ms,
            on_node_loss=row.rule,
            stop_grace_ms=row.stop_grace_ms,
            wall_time_ms=row.wall_time_ms,
        )
