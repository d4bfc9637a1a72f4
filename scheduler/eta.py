"""When a waiting job starts, as a range: the queue before it is played forward, once with early ends, once with late.

Early: each attempt that says a wall time ends after a tenth of what is left of it; late: at its end. Of one that says
none, age tells: where lives are spread like a power law, of those that are a old nine in ten last a/9 more, and one in
ten lasts 9a (so the range between holds eight in ten). Who comes later and goes first, and who fails, is not foreseen.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from muster.domain.ids import AttemptId, GpuUuid, JobId, TenantId
from muster.domain.policy import Policy
from scheduler.closing import closing_of
from scheduler.elastic import nodes_within
from scheduler.endings import CLEANING_MS, LEAST_LEFT_MS, OVERDUE_MS
from scheduler.model import Plan, Question, Reclaim, RunningAttempt, StandingReclaim, StartRange, WaitingJob
from scheduler.order import expected_s
from scheduler.solver import Request, place, request_of
from scheduler.tenancy import Holdings
from scheduler.topology import Flags, FleetState, Ints

MAX_LOOKS: Final = 1_000
"""So many gangs are tried at most; then nobody knows. It bounds what a question costs on a long queue."""
MAX_KINDS: Final = 100_000
"""And so many kinds of gangs are considered, also those whose quota or a like gang's failure keeps them waiting."""

MOMENTS_APART: Final = 1.05
"""Ends are taken together by so much of the time until them: a range needs no more."""

EARLY_SHARE: Final = 0.1
AGE_FACTORS: Final = (1 / 9, 9.0)
NOBODY: Final = -1
_NONE: Final[Ints] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Pace:
    """``share``: of what is left of a wall time that is used; ``of_age``: of an attempt without one, in its age.

    ``keeps_holds``: what is held for a job is used by nobody else; who ends before may do so.
    """

    share: float
    of_age: float
    cleaning_ms: int
    keeps_holds: bool

    def left_ms(self, attempt: RunningAttempt, now_ms: int) -> int:
        if attempt.ends_ms is not None and attempt.ends_ms >= now_ms - OVERDUE_MS:
            return int(max(attempt.ends_ms - now_ms, 0) * self.share) + self.cleaning_ms
        age_ms = max(now_ms - attempt.started_ms, LEAST_LEFT_MS)
        return int(age_ms * self.of_age) + self.cleaning_ms

    def run_ms(self, job: WaitingJob, policy: Policy) -> int:
        return int(expected_s(job, policy) * 1000 * self.share) + self.cleaning_ms


_EARLY: Final = _Pace(EARLY_SHARE, AGE_FACTORS[0], 0, keeps_holds=False)
_LATE: Final = _Pace(1.0, AGE_FACTORS[1], CLEANING_MS, keeps_holds=True)


def start_range(state: FleetState, asked: Question, decided: Plan, ahead: Sequence[WaitingJob]) -> StartRange | None:
    """Of the last of ``ahead``, which are in the queue's order and all wait; None: not even the earliest is known.

    ``state``: as the plan left it, and so it is again afterwards.
    """
    earliest_ms = _Play(state, asked, decided, ahead, _EARLY).starts_ms()
    if earliest_ms is None:
        return None
    latest_ms = _Play(state, asked, decided, ahead, _LATE).starts_ms()
    return StartRange(earliest_ms, None if latest_ms is None else max(earliest_ms, latest_ms))


@dataclass(frozen=True, slots=True, order=True)
class _End:
    at_ms: int
    number: int
    gpus: tuple[int, ...]
    holder: tuple[TenantId, str]


class _Play:
    """The queue in its order on the fleet as attempts end. Nothing is reclaimed but what is decided already."""

    def __init__(
        self, state: FleetState, asked: Question, decided: Plan, ahead: Sequence[WaitingJob], pace: _Pace
    ) -> None:
        self._state, self._asked, self._pace = state, asked, pace
        self._now_ms, self._num_looks, self._num_kinds = asked.workload.now_ms, 0, 0
        self._waiting = dict(enumerate(ahead))
        self._asked_for = ahead[-1].job_id
        self._holdings = Holdings(asked.workload.tenancy)
        self._ends: list[_End] = []
        self._is_busy: Flags = np.zeros(len(state.layout.uuids), dtype=np.bool_)
        self._held_for: Ints = np.full(len(state.layout.uuids), NOBODY, dtype=np.int64)
        numbers = {job.job_id: number for number, job in self._waiting.items()}
        with_holds = {NOBODY}
        for job_id, uuids in _holds(asked, decided) if pace.keeps_holds else ():
            with_holds.add(numbers.get(job_id, NOBODY))
            self._held_for[state.layout.gpu_indices(uuids)] = numbers.get(job_id, NOBODY)
        self._with_holds = frozenset(with_holds)
        self._kinds = self._alike()
        self._begin(decided)

    def _alike(self) -> list[tuple[Request, deque[int]]]:
        """Jobs of one tenant that ask for the same, in their order: where one of them does not start, none does.

        Who has a place held for it is a kind of its own. A tier that the policy no longer defines starts nobody.
        """
        kinds = defaultdict[tuple[Request, TenantId, str, int], deque[int]](deque)
        for number, job in self._waiting.items():
            tier = self._asked.policy.tiers.get(job.tier)
            if tier is not None:
                closing_ms = closing_of(self._state, job, self._asked.policy, self._now_ms)
                request = request_of(job, is_reclaimable=tier.notice_s is not None, closing_ms=closing_ms).at_least()
                own = number if number in self._with_holds else NOBODY
                kinds[request, job.tenant_id, job.tier, own].append(number)
        return [(request, numbers) for (request, *_), numbers in kinds.items()]

    def _begin(self, decided: Plan) -> None:
        due_ms = {item.victim: self._now_ms + int(item.notice_s * 1000) for item in decided.reclaims}
        layout = self._state.layout
        keeps = _keeps(self._asked, decided)
        for attempt in self._asked.workload.running:
            kept, holder = keeps.get(attempt.attempt_id, frozenset()), (attempt.tenant_id, attempt.tier)
            if kept:  # it shrinks: its job goes on there, whatever the stop is due for
                whole = replace(attempt, ends_ms=None) if attempt.is_stopping else attempt
                goes_on_ms = self._now_ms + self._pace.left_ms(whole, self._now_ms)
                self._will_end(goes_on_ms, layout.gpu_indices(uuid for uuid in attempt.gpus if uuid in kept), holder)
            at_ms = self._now_ms + self._pace.left_ms(attempt, self._now_ms)
            given = layout.gpu_indices(uuid for uuid in attempt.gpus if uuid not in kept)
            self._will_end(min(at_ms, due_ms.get(attempt.attempt_id, at_ms)), given, holder)
        queue = {job.job_id: job for job in self._asked.queue}
        for placed in decided.placements:
            job = queue[placed.job_id]
            gpus = layout.gpu_indices(uuid for _, part in placed.parts for uuid in part)
            self._will_end(self._now_ms + self._pace.run_ms(job, self._asked.policy), gpus, (job.tenant_id, job.tier))

    def _will_end(self, at_ms: int, gpus: Ints, holder: tuple[TenantId, str]) -> None:
        self._holdings.add(*holder, len(gpus))
        self._is_busy[gpus] = True
        heapq.heappush(self._ends, _End(at_ms, len(self._ends), tuple(gpus.tolist()), holder))

    def starts_ms(self) -> int | None:
        was_free = self._state.is_free.copy()
        try:
            self._give(np.flatnonzero(~was_free & ~self._is_busy))
            return self._played()
        finally:
            is_free = self._state.is_free
            taken, given = np.flatnonzero(was_free & ~is_free), np.flatnonzero(is_free & ~was_free)
            self._state.take(given)
            self._state.give(taken)

    def _played(self) -> int | None:
        for at_ms in self._moments():
            if self._asked_for in self._placed(at_ms):
                return at_ms
            if self._num_looks >= MAX_LOOKS or self._num_kinds >= MAX_KINDS:
                return None
        return None

    def _moments(self) -> Iterator[int]:
        """Now, and after each group of ends: what they held is free."""
        yield self._now_ms
        while self._ends:
            at_ms = self._ends[0].at_ms
            until_ms = self._now_ms + int((at_ms - self._now_ms) * MOMENTS_APART)
            while self._ends and self._ends[0].at_ms <= until_ms:
                end = heapq.heappop(self._ends)
                at_ms = end.at_ms
                self._holdings.add(*end.holder, -len(end.gpus))
                self._give(np.array(end.gpus, dtype=np.int64))
            yield at_ms

    def _give(self, gpus: Ints) -> None:
        """Idle from now on: free, or held where they are held for a job."""
        self._is_busy[gpus] = False
        gpus = gpus[(self._held_for[gpus] == NOBODY) & ~self._state.is_free[gpus]]
        self._state.give(gpus)

    def _placed(self, at_ms: int) -> list[JobId]:
        """Who starts now, in the queue's order."""
        failed: set[Request] = set()
        placed = []
        heads = [(numbers[0], which) for which, (_, numbers) in enumerate(self._kinds) if numbers]
        heapq.heapify(heads)
        while heads:
            number, which = heapq.heappop(heads)
            request, numbers = self._kinds[which]
            self._num_kinds += 1
            if (request in failed and number not in self._with_holds) or not self._may_have(self._waiting[number]):
                continue
            if not self._starts(number, request, at_ms):
                failed.add(request)
                continue
            placed.append(self._waiting.pop(number).job_id)
            numbers.popleft()
            if numbers:
                heapq.heappush(heads, (numbers[0], which))
        return placed

    def _may_have(self, job: WaitingJob) -> bool:
        """Within its tenant's quota."""
        return nodes_within(job, self._holdings) >= job.fewest_nodes

    def _starts(self, number: int, request: Request, at_ms: int) -> bool:
        job = self._waiting[number]
        self._num_looks += 1
        has_hold = number in self._with_holds
        own = np.flatnonzero((self._held_for == number) & ~self._is_busy & ~self._state.is_free) if has_hold else _NONE
        self._state.give(own)
        chosen = place(self._state, request)
        if chosen is None:
            self._state.take(own)
            return False
        if has_hold:
            self._held_for[self._held_for == number] = NOBODY
        self._state.take(chosen.gpus)
        self._will_end(at_ms + self._pace.run_ms(job, self._asked.policy), chosen.gpus, (job.tenant_id, job.tier))
        return True


def _keeps(asked: Question, decided: Plan) -> dict[AttemptId, frozenset[GpuUuid]]:
    """What elastic victims go on with, of those that give a part of what they have."""
    reclaims: Sequence[StandingReclaim | Reclaim] = [*asked.workload.reclaims, *decided.reclaims]
    return {item.victim: frozenset(item.keeps) for item in reclaims if item.keeps}


def _holds(asked: Question, decided: Plan) -> Iterator[tuple[JobId, Sequence[GpuUuid]]]:
    for own in asked.workload.holds:
        yield own.job_id, own.gpus
    for standing in asked.workload.reclaims:
        yield standing.beneficiary, standing.held
    for reclaim in decided.reclaims:
        yield reclaim.beneficiary, reclaim.held
    for held in decided.holds:
        yield held.job_id, held.gpus
