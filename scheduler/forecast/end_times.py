"""The times at which GPUs in use become free by themselves: by stop deadlines, wall times or predicted run times.

An attempt that outlasts its predicted run time gets a longer one (``scheduler.queue.order``). Placements of this cycle
end too: a pending gang counts on them as on all running attempts, and no job that would outlast such an end goes before
the gang on the GPUs that the gang needs.
"""

import functools
import math
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final

import numpy as np

from muster.domain.ids import JobId, TenantId
from muster.domain.policy.document import Policy
from scheduler.fleet.topology import NEVER_MS, Flags, FleetState, Ints
from scheduler.model import RunningAttempt, WaitingJob, Workload
from scheduler.queue.order import expected_run_s

OVERDUE_MS: Final = 60_000
LEAST_LEFT_MS: Final = 60_000
CLEANING_MS: Final = 60_000
"""GPUs that are being proved clean become free within so long, or their host is cordoned."""
_NONE: Final = -1


def expected_end_ms(started_ms: int, predicted_ms: int, now_ms: int, policy: Policy) -> int:
    """Return when an attempt is expected to end, given its predicted end, which may be in the past."""
    run_s, ran_s = (predicted_ms - started_ms) / 1000, (now_ms - started_ms) / 1000
    return started_ms + math.ceil(expected_run_s(run_s, ran_s, policy) * 1000)


class Endings:
    """The ends of one cycle, in the order of ``attempts``, then of later placements.

    ``owner``: the index of the attempt that has each GPU, or -1. ``ends_ms``: the latest time at which each attempt
    ends for certain, or ``NEVER_MS``; a notice changes it.
    """

    def __init__(
        self, state: FleetState, policy: Policy, attempts: Sequence[RunningAttempt], workload: Workload
    ) -> None:
        self._state, self._now_ms, self._attempts = state, workload.now_ms, attempts
        num_gpus = len(state.layout.uuids)
        self.owner: Ints = _no_holders(num_gpus)
        sizes = [len(attempt.gpus) for attempt in attempts]
        names = chain.from_iterable([attempt.gpus for attempt in attempts])
        found = map(state.layout.index_of.get, names, repeat(_NONE))
        gpus: Ints = np.fromiter(found, dtype=np.int64, count=sum(sizes))
        is_known = gpus != _NONE
        if attempts:
            self.owner = self.owner.copy()
            self.owner[gpus[is_known]] = np.arange(len(attempts)).repeat(sizes)[is_known]
        self.ends_ms: Ints = _moments([attempt.ends_ms for attempt in attempts])
        self._predicted_ms: Ints = _moments([attempt.predicted_ms for attempt in attempts])
        for index in np.flatnonzero(self._predicted_ms < workload.now_ms).tolist():
            started_ms, predicted_ms = attempts[index].started_ms, int(self._predicted_ms[index])
            self._predicted_ms[index] = expected_end_ms(started_ms, predicted_ms, workload.now_ms, policy)
        self._is_cleaning: Flags = np.zeros(num_gpus, dtype=np.bool_)
        self._is_cleaning[state.layout.gpu_indices(workload.cleaning)] = True
        self._recorded: Ints = _no_holders(num_gpus)
        self._to_record: list[tuple[int, Ints]] = []
        self._placed_ends_ms: list[int] = []
        self._placed_known_ms: list[int] = []
        self._placed: list[tuple[TenantId, str, int]] = []
        self._placed_jobs: set[JobId] = set()

    def placed(self, job: WaitingJob, gpus: Ints) -> None:
        """Record a placement: it runs from now on, and counts as an attempt in later decisions."""
        self._to_record.append((len(self._placed_ends_ms), gpus))
        self._placed_ends_ms.append(self._in_ms(job.expected_s))
        self._placed_known_ms.append(self._in_ms(job.expected_run_s))
        self._placed.append((job.tenant_id, job.tier, len(gpus)))
        self._placed_jobs.add(job.job_id)

    def has_placed(self, job_id: JobId) -> bool:
        return job_id in self._placed_jobs

    def new_tier(self, gpus: Ints) -> str | None:
        """Return the tier of the first placement of this cycle on any of these GPUs; None if there is none."""
        placed = self._placed_as[gpus]
        number = int(placed[placed != _NONE].min(initial=len(self._placed)))
        return self._placed[number][1] if number < len(self._placed) else None

    @property
    def _placed_as(self) -> Ints:
        """Return the number of each GPU's placement, or ``_NONE``. It is made when first read: many cycles never do."""
        if self._to_record and not self._recorded.flags.writeable:
            self._recorded = self._recorded.copy()
        for number, gpus in self._to_record:
            self._recorded[gpus] = number
        self._to_record.clear()
        return self._recorded

    @property
    def num_holders(self) -> int:
        return len(self._attempts) + len(self._placed)

    def holders(self, first: int = 0) -> list[tuple[TenantId, str, int]]:
        """Return tenant, tier and number of GPUs of each, in the order of the ends, from this number on."""
        of_attempts = [(one.tenant_id, one.tier, len(one.gpus)) for one in self._attempts[first:]]
        return of_attempts + self._placed[max(first - len(self._attempts), 0) :]

    def _in_ms(self, run_s: float | None) -> int:
        return NEVER_MS if run_s is None else min(self._now_ms + int(run_s * 1000), NEVER_MS)

    def go_on(self, index: int) -> None:
        """Withdraw the notice of an attempt, which then ends as it would have without one."""
        end_ms = self._attempts[index].ends_ms
        self.ends_ms[index] = NEVER_MS if end_ms is None else end_ms

    def certain_ms(self) -> Ints:
        """Return the certain ends, also past ones: an attempt that outlasts its end may leave at any moment."""
        return np.append(self.ends_ms, _moments(self._placed_ends_ms))

    def known_ms(self) -> Ints:
        """Return the known ends, none in the past; ``NEVER_MS`` if unknown.

        An end is unknown if there is neither a wall time nor a prediction, or if the attempt has outlasted its wall
        time or deadline by more than ``OVERDUE_MS``.
        """
        ends_ms = np.where(self.ends_ms < self._now_ms - OVERDUE_MS, NEVER_MS, self.ends_ms)
        known_ms = np.maximum(np.minimum(ends_ms, self._predicted_ms), self._now_ms)
        return np.append(known_ms, _moments(self._placed_known_ms))

    def known_or_ms(self, free_from_ms: Ints | None) -> Ints:
        """Return the known ends, or the time of a reclaim if that is earlier. ``free_from_ms``: of each attempt."""
        known, num = self.known_ms(), len(self._attempts)
        if free_from_ms is not None:
            known[:num] = np.minimum(known[:num], np.maximum(free_from_ms, self._now_ms))
        return known

    def expected_ms(self) -> Ints:
        """Return the known ends, and estimates for the other attempts.

        Each of these runs as long again as it has, at least ``LEAST_LEFT_MS``, and ends at a time of its own, so that a
        gang counts on no more of them than it needs. New placements get no estimate.
        """
        known, num = self.known_ms(), len(self._attempts)
        ages = np.array([self._now_ms - attempt.started_ms for attempt in self._attempts], dtype=np.int64)
        believed = self._now_ms + np.maximum(ages, LEAST_LEFT_MS) + np.arange(num)
        known[:num] = np.where(known[:num] == NEVER_MS, believed, known[:num])
        return known

    def coming(self, until_ms: int, ends_ms: Ints) -> Ints:
        """Return the GPUs in use that become free until then, given these ends."""
        num = len(self._attempts)
        ending, placed = np.append(ends_ms[:num] <= until_ms, False), np.append(ends_ms[num:] <= until_ms, False)
        if not ending.any() and not placed.any():
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero((ending[self.owner] | placed[self._placed_as]) & ~self._state.is_free)

    def free_from_ms(self, ends_ms: Ints) -> Ints:
        """Return when each GPU becomes free, given these ends; ``NEVER_MS`` if unknown."""
        num = len(self._attempts)
        ending, placed = np.append(ends_ms[:num], NEVER_MS), np.append(ends_ms[num:], NEVER_MS)
        moments: Ints = np.minimum(ending[self.owner], placed[self._placed_as])
        cleaned = self.cleaned()
        moments[cleaned] = np.minimum(moments[cleaned], self._now_ms + CLEANING_MS)
        moments[self._state.is_free] = self._now_ms
        return moments

    def cleaned(self) -> Ints:
        """Return the GPUs on which no program runs any more: they become free within ``CLEANING_MS``."""
        return np.flatnonzero(self._is_cleaning & ~self._state.is_free)

    def last_ms(self, gpus: Ints) -> int:
        """Return when the last of these has become free for certain; now, if all are free."""
        of_attempts = np.append(self.ends_ms, self._now_ms)
        of_placed = np.append(_moments(self._placed_ends_ms), self._now_ms)
        moments = np.maximum(of_attempts[self.owner[gpus]], of_placed[self._placed_as[gpus]])
        return int(moments.max(initial=self._now_ms))


@functools.lru_cache(maxsize=4)
def _no_holders(num_gpus: int) -> Ints:
    """Return a shared, read-only array in which no GPU has a holder."""
    found: Ints = np.full(num_gpus, _NONE, dtype=np.int64)
    found.flags.writeable = False
    return found


def _moments(moments: Sequence[int | None]) -> Ints:
    return np.array([NEVER_MS if moment is None else moment for moment in moments], dtype=np.int64)
