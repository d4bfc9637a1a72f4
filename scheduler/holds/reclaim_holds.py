"""Reclaim and resume holds: GPUs that are held for one job, which no other job takes."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from muster.domain.ids import AttemptId, JobId
from muster.domain.states import ReclaimState
from scheduler.fleet.topology import Flags, FleetState, Ints
from scheduler.model import Lapse, ResumeHold, StandingReclaim, Withdrawal
from scheduler.reclaim.withdrawal import may_be_withdrawn


class ReclaimHolds:
    """The holds of one cycle. ``mask``: the held GPUs. The free ones among them are taken in the fleet's state.

    ``num_changes`` of the mask, which ``cover`` and ``uncover`` alone change, only grows.
    """

    def __init__(self, state: FleetState, reclaims: Sequence[StandingReclaim], running: Collection[AttemptId]) -> None:
        self._state, self._running = state, running
        self._standing: dict[JobId, list[StandingReclaim]] = defaultdict(list)
        for reclaim in sorted(reclaims, key=lambda reclaim: reclaim.victim):
            self._standing[reclaim.beneficiary].append(reclaim)
        self._taken: dict[JobId, Ints] = {}
        self.mask: Flags = np.zeros(len(state.layout.uuids), dtype=np.bool_)
        self.num_changes = 0
        self.withdrawals: list[Withdrawal] = []
        self.lapses: list[Lapse] = []
        self._own: dict[JobId, tuple[ResumeHold, Ints]] = {}

    def cover(self, gpus: Ints | Flags) -> None:
        """Mark these GPUs as held."""
        self.mask[gpus] = True
        self.num_changes += 1

    def uncover(self, gpus: Ints | Flags) -> None:
        """Mark these GPUs as held no longer."""
        self.mask[gpus] = False
        self.num_changes += 1

    def hold_own(self, own: ResumeHold) -> None:
        """Hold the GPUs of a job that changes its size or was interrupted."""
        gpus = np.unique(self._state.layout.gpu_indices(own.gpus))
        free = gpus[self._state.is_free[gpus]]
        self._state.take(free)
        self.cover(gpus)
        self._own[own.job_id] = own, free

    def lift_own(self, job_id: JobId) -> ResumeHold | None:
        """Lift the job's own hold, if any, and return it. Any job may take the GPUs; the job itself is tried first."""
        if job_id not in self._own:
            return None
        own, free = self._own.pop(job_id)
        self.uncover(self._state.layout.gpu_indices(own.gpus))
        self._state.give(free)
        return own

    def jobs(self) -> list[JobId]:
        return sorted(self._standing)

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._standing

    def are_for(self, job_id: JobId) -> bool:
        """Return whether GPUs are held for the job, by a reclaim or since an attempt of its own."""
        return job_id in self._standing or job_id in self._own

    def deadline_ms(self, job_id: JobId) -> int:
        return max(reclaim.deadline_ms for reclaim in self._standing[job_id])

    def hold_of(self, job_id: JobId) -> Ints:
        uuids = (uuid for reclaim in self._standing[job_id] for uuid in reclaim.hold)
        return np.unique(self._state.layout.gpu_indices(uuids))

    def holds_of(self, jobs: Iterable[JobId]) -> Ints:
        """Return all GPUs that are held for the beneficiaries among these jobs."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(self.hold_of(job) for job in jobs if job in self)])

    def hold(self, job_id: JobId, gpus: Ints) -> None:
        """Hold ``gpus``, distinct indices, free or not."""
        free = gpus[self._state.is_free[gpus]]
        self._state.take(free)
        self._taken[job_id] = free
        self.cover(gpus)

    def lift(self, job_id: JobId) -> None:
        """Free the held GPUs, so that the beneficiary itself can choose among them; ``hold`` undoes this."""
        self.uncover(self.hold_of(job_id))
        self._state.give(self._taken.pop(job_id))

    def withdraw(self, job_id: JobId, why: str) -> list[Withdrawal]:
        """Release the hold, and return the withdrawals: of victims that run and may continue."""
        if job_id in self._taken:
            self.lift(job_id)
        withdrawals = [
            Withdrawal(reclaim.victim, job_id, why)
            for reclaim in self._standing.pop(job_id)
            if reclaim.victim in self._running
            and may_be_withdrawn(ReclaimState.NOTIFIED, is_delivered=reclaim.is_delivered)
        ]
        self.withdrawals += withdrawals
        self.lapses.append(Lapse(job_id, why))
        return withdrawals
