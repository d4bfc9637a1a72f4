"""When what is held comes free of its own: by stop deadlines and wall times, or by what others like it took.

Who outlasts what others like it took is believed anew (``scheduler.queue.order``). What the cycle itself has just
placed ends too: a gang that waits counts on it as on all that runs, and nobody who would outlast it goes before the
gang on what it needs.
"""

import math
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final

import numpy as np

from muster.domain.ids import TenantId
from muster.domain.policy.document import Policy
from scheduler.fleet.topology import NEVER_MS, Flags, FleetState, Ints
from scheduler.model import RunningAttempt, WaitingJob, Workload
from scheduler.queue.order import believed_run_s

OVERDUE_MS: Final = 60_000
LEAST_LEFT_MS: Final = 60_000
CLEANING_MS: Final = 60_000
"""What is being proved clean comes free within so long, or its host is cordoned."""
_NOBODY: Final = -1


def believed_end_ms(started_ms: int, predicted_ms: int, now_ms: int, policy: Policy) -> int:
    """When one is believed to end that others like it would have ended before now, or will."""
    run_s, ran_s = (predicted_ms - started_ms) / 1000, (now_ms - started_ms) / 1000
    return started_ms + math.ceil(believed_run_s(run_s, ran_s, policy) * 1000)


class Endings:
    """Of one cycle. Ends are told in the order of ``attempts``, then of what was placed since.

    ``owner``: of each GPU the index of the attempt that holds it, or -1. ``ends_ms``: of each attempt, when it ends for
    certain at the latest, or ``NEVER_MS``; a notice moves it.
    """

    def __init__(
        self, state: FleetState, policy: Policy, attempts: Sequence[RunningAttempt], workload: Workload
    ) -> None:
        self._state, self._now_ms, self._attempts = state, workload.now_ms, attempts
        num_gpus = len(state.layout.uuids)
        self.owner: Ints = np.full(num_gpus, _NOBODY, dtype=np.int64)
        sizes = [len(attempt.gpus) for attempt in attempts]
        names = chain.from_iterable([attempt.gpus for attempt in attempts])
        found = map(state.layout.index_of.get, names, repeat(_NOBODY))
        gpus: Ints = np.fromiter(found, dtype=np.int64, count=sum(sizes))
        is_known = gpus != _NOBODY
        self.owner[gpus[is_known]] = np.arange(len(attempts)).repeat(sizes)[is_known]
        self.ends_ms: Ints = _moments([attempt.ends_ms for attempt in attempts])
        self._predicted_ms: Ints = _moments([attempt.predicted_ms for attempt in attempts])
        for index in np.flatnonzero(self._predicted_ms < workload.now_ms).tolist():
            started_ms, predicted_ms = attempts[index].started_ms, int(self._predicted_ms[index])
            self._predicted_ms[index] = believed_end_ms(started_ms, predicted_ms, workload.now_ms, policy)
        self._is_cleaning: Flags = np.zeros(num_gpus, dtype=np.bool_)
        self._is_cleaning[state.layout.gpu_indices(workload.cleaning)] = True
        self._placed_as: Ints = np.full(num_gpus, _NOBODY, dtype=np.int64)
        self._placed_ends_ms: list[int] = []
        self._placed_known_ms: list[int] = []
        self._placed: list[tuple[TenantId, str, int]] = []

    def placed(self, job: WaitingJob, gpus: Ints) -> None:
        """It runs from now on: in what is still to be decided it counts as an attempt does."""
        self._placed_as[gpus] = len(self._placed_ends_ms)
        self._placed_ends_ms.append(self._in_ms(job.expected_s))
        self._placed_known_ms.append(self._in_ms(job.believed_s))
        self._placed.append((job.tenant_id, job.tier, len(gpus)))

    @property
    def num_holders(self) -> int:
        return len(self._attempts) + len(self._placed)

    def holders(self, first: int = 0) -> list[tuple[TenantId, str, int]]:
        """Tenant, tier and number of GPUs of each, in the order of the ends, from the one of that number on."""
        of_attempts = [(one.tenant_id, one.tier, len(one.gpus)) for one in self._attempts[first:]]
        return of_attempts + self._placed[max(first - len(self._attempts), 0) :]

    def _in_ms(self, run_s: float | None) -> int:
        return NEVER_MS if run_s is None else min(self._now_ms + int(run_s * 1000), NEVER_MS)

    def go_on(self, index: int) -> None:
        """Whoever was to leave ends as it would have without a notice; in this cycle nobody counts on what is told to
        stop, since its end is that of the notice.
        """
        one = self._attempts[index]
        self.ends_ms[index] = NEVER_MS if one.ends_ms is None or one.is_stopping else one.ends_ms

    def certain_ms(self) -> Ints:
        """As they are, be they over: who outstays its end may leave at any moment."""
        return np.append(self.ends_ms, _moments(self._placed_ends_ms))

    def known_ms(self) -> Ints:
        """None in the past; ``NEVER_MS`` where nobody knows: there is neither a wall time nor others like it, or it has
        outstayed its wall time or its deadline for longer than ``OVERDUE_MS``.
        """
        ends_ms = np.where(self.ends_ms < self._now_ms - OVERDUE_MS, NEVER_MS, self.ends_ms)
        known_ms = np.maximum(np.minimum(ends_ms, self._predicted_ms), self._now_ms)
        return np.append(known_ms, _moments(self._placed_known_ms))

    def known_or_ms(self, free_from_ms: Ints | None) -> Ints:
        """As ``known_ms``, or when it may be reclaimed, where that is earlier. ``free_from_ms``: of each attempt."""
        known, num = self.known_ms(), len(self._attempts)
        if free_from_ms is not None:
            known[:num] = np.minimum(known[:num], np.maximum(free_from_ms, self._now_ms))
        return known

    def believed_ms(self) -> Ints:
        """As ``known_ms``, and of the other attempts: each runs as long again as it has, at least ``LEAST_LEFT_MS``.

        Those end each at a moment of its own, so that no more of them are counted on than it takes. Of what has only
        just been placed nothing is believed.
        """
        known, num = self.known_ms(), len(self._attempts)
        ages = np.array([self._now_ms - attempt.started_ms for attempt in self._attempts], dtype=np.int64)
        believed = self._now_ms + np.maximum(ages, LEAST_LEFT_MS) + np.arange(num)
        known[:num] = np.where(known[:num] == NEVER_MS, believed, known[:num])
        return known

    def coming(self, until_ms: int, ends_ms: Ints) -> Ints:
        """Held GPUs that come free until then, if the ends are those."""
        num = len(self._attempts)
        ending, placed = np.append(ends_ms[:num] <= until_ms, False), np.append(ends_ms[num:] <= until_ms, False)
        if not ending.any() and not placed.any():
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero((ending[self.owner] | placed[self._placed_as]) & ~self._state.is_free)

    def free_from_ms(self, ends_ms: Ints) -> Ints:
        """Of each GPU the moment from which it is free, if the ends are those; ``NEVER_MS`` where nobody knows."""
        num = len(self._attempts)
        ending, placed = np.append(ends_ms[:num], NEVER_MS), np.append(ends_ms[num:], NEVER_MS)
        moments: Ints = np.minimum(ending[self.owner], placed[self._placed_as])
        cleaned = self.cleaned()
        moments[cleaned] = np.minimum(moments[cleaned], self._now_ms + CLEANING_MS)
        moments[self._state.is_free] = self._now_ms
        return moments

    def cleaned(self) -> Ints:
        """Held GPUs that nobody runs on any more: they come free within ``CLEANING_MS``."""
        return np.flatnonzero(self._is_cleaning & ~self._state.is_free)

    def last_ms(self, gpus: Ints) -> int:
        """When the last of these has come free for certain; now, where none is held."""
        of_attempts = np.append(self.ends_ms, self._now_ms)
        of_placed = np.append(_moments(self._placed_ends_ms), self._now_ms)
        moments = np.maximum(of_attempts[self.owner[gpus]], of_placed[self._placed_as[gpus]])
        return int(moments.max(initial=self._now_ms))


def _moments(moments: Sequence[int | None]) -> Ints:
    return np.array([NEVER_MS if moment is None else moment for moment in moments], dtype=np.int64)
