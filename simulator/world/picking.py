"""Placements and victims picked at random: a poor scheduler, but one that meets every race between commits."""

from collections import Counter
from random import Random

from muster.domain.ids import AttemptId, GpuUuid, NodeId
from muster.domain.lifecycle.model import JobLifecycle
from muster.domain.states import JobState
from simulator.world.kernel import Kernel
from simulator.world.placing import Picks, Placer
from simulator.world.reclaiming import Reclaims
from simulator.world.server import Server
from simulator.world.settings import Settings
from simulator.world.wiring import Wiring


class RandomPicker:
    """The random scheduler. ``num_decided``: empty, since no rule decides here."""

    name = "picker"

    def __init__(
        self,
        kernel: Kernel,
        rng: Random,
        settings: Settings,
        wiring: Wiring,
        server: Server,
        placer: Placer,
        reclaims: Reclaims,
    ) -> None:
        self._kernel, self._rng, self._settings, self._wiring, self._server = kernel, rng, settings, wiring, server
        self._store, self._placer, self._reclaims = server.store, placer, reclaims
        self.num_decided: Counter[str] = Counter()
        self._shuffles = rng.random() < 0.5  # else the first hosts are preferred, and jobs come back to them

    def begin(self) -> None:
        """Do nothing: it is called again with each beat, and has no state."""

    def select(self) -> None:
        """Pick placements. Several rounds may be in progress at once, as with two schedulers."""
        taken: set[GpuUuid] = set()
        for job in self._store.jobs.values():
            if job.state is not JobState.QUEUED:
                continue
            picks = self._pick(job, taken)
            if picks is not None:
                taken.update(gpu for part in picks.values() for gpu in part)
                delay_ms = 1 + int(self._rng.random() ** 2 * 3 * self._settings.timers.heartbeat_ms)
                self._kernel.after(delay_ms, self._server.receive, self._placer.commit, job, picks)

    def _pick(self, job: JobLifecycle, taken: set[GpuUuid]) -> Picks | None:
        row = self._store.rows[job.job_id]
        fewest = row.min_nodes if self._wiring.keeps_to_sizes else 1
        room = self._store.ceiling_gpus - self._store.num_assigned(row.tenant)
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
                if gpu not in taken and self._placer.refusal(node_id, gpu, job.job_id) is None
            ]
            if len(free) >= row.gpus_per_node:
                picks[node_id] = tuple(free[: row.gpus_per_node])
                if len(picks) >= most:
                    break
        return picks if len(picks) >= fewest else None

    def reclaim(self) -> None:
        """Reclaim from a random victim, for no beneficiary."""
        victims = [one for one in self._store.live_of_job.values() if self._reclaims.may_be_taken(one)]
        if victims:
            attempt_id: AttemptId = self._rng.choice(victims)
            delay_ms = 1 + int(self._rng.random() ** 3 * 40 * self._settings.timers.heartbeat_ms)
            job_id, now_ms = self._store.attempts[attempt_id].job_id, self._kernel.now_ms
            self._kernel.after(delay_ms, self._server.receive, self._reclaims.notify, job_id, attempt_id, now_ms)
