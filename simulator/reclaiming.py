"""Reclaims: a victim chosen on a snapshot, and a while later the committed notice, from which its time counts."""

from random import Random
from typing import Final

from muster.domain.ids import AttemptId, JobId
from muster.domain.states import StopReason
from simulator.kernel import Kernel
from simulator.server import Server
from simulator.settings import Settings
from simulator.store import Notice
from simulator.wiring import Wiring

_NOTIFY: Final = "reclaim.notify"


class Reclaimer:
    name = "reclaimer"

    def __init__(self, kernel: Kernel, rng: Random, settings: Settings, wiring: Wiring, server: Server) -> None:
        self._kernel, self._rng, self._settings, self._wiring, self._server = kernel, rng, settings, wiring, server
        self._store = server.store

    def select(self) -> None:
        victims = [attempt_id for attempt_id in self._store.live_of_job.values() if self._may_be_taken(attempt_id)]
        if victims:
            attempt_id = self._rng.choice(victims)
            delay_ms = 1 + int(self._rng.random() ** 3 * 40 * self._settings.timers.heartbeat_ms)
            job_id, now_ms = self._store.attempts[attempt_id].job_id, self._kernel.now_ms
            self._kernel.after(delay_ms, self._server.receive, self.notify, job_id, attempt_id, now_ms)

    def _may_be_taken(self, attempt_id: AttemptId) -> bool:
        life = self._store.attempts[attempt_id]
        row = self._store.rows[life.job_id]
        is_free = life.stop is None and life.ending is None
        return is_free and row.notice_ms is not None and self._kernel.now_ms - life.placed_ms >= row.min_run_ms

    def notify(self, job_id: JobId, seen: AttemptId, selected_ms: int) -> None:
        """The notice, its deadline and the stop are one transaction."""
        attempt_id = self._store.live_of_job.get(job_id)
        if attempt_id is None:
            return
        if self._wiring.rechecks_victims and (attempt_id != seen or not self._may_be_taken(attempt_id)):
            return
        self._server.failpoint(f"{_NOTIFY}.before_commit")
        now_ms = self._kernel.now_ms
        notice_ms = self._store.rows[job_id].notice_ms or 0
        deadline_ms = notice_ms + (now_ms if self._wiring.counts_notice_from_commit else selected_ms)
        self._store.put_notice(self._store.attempts[attempt_id], Notice(now_ms, deadline_ms))
        rings = self._server.stop_in(attempt_id, StopReason.RECLAIM, deadline_ms - now_ms)
        self._server.failpoint(f"{_NOTIFY}.after_commit")
        self._server.send_rings(rings)
