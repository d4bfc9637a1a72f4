"""When a waiting job starts, as a range: the queue before it is played forward, once with early ends, once with late.

Early: each attempt that says a wall time ends after a tenth of what is left of it; late: at its end. Of one that says
none, age tells: where lives are spread like a power law, of those that are a old nine in ten last a/9 more, and one in
ten lasts 9a (so the range between holds eight in ten). Who comes later and goes first, and who fails, is not foreseen.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from muster.domain.ids import AttemptId, GpuUuid, JobId, TenantId
from muster.domain.policy import Policy
from scheduler.elastic import nodes_within
from scheduler.endings import CLEANING_MS, LEAST_LEFT_MS, OVERDUE_MS
from scheduler.line import Line, line_of
from scheduler.model import Plan, Question, Reclaim, RunningAttempt, StandingReclaim, StartRange, WaitingJob
from scheduler.order import expected_s
from scheduler.solver import Request, place
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
_NO_FLAGS: Final[Flags] = np.zeros(0, dtype=np.bool_)


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


_End = tuple[int, int, Ints, tuple[TenantId, str]]
"""When, a number that tells it from others of that moment, what comes free, and who held it, in which tier."""


class Outlook:
    """What is the same for all who ask about one plan: who waits, what is held, and how a play begins.

    ``state``: as the plan left it, and as long as it is left so.
    """

    def __init__(self, state: FleetState, asked: Question, decided: Plan) -> None:
        self._state, self._asked, self._decided = state, asked, decided
        self.line = line_of(state, asked, decided)
        self.holdings = _holdings(asked, decided)
        self._grounds: dict[_Pace, _Ground] = {}
        self._idle: FleetState | None = None
        """The fleet if nothing were held for anybody."""

    def start_range(self, job_id: JobId) -> StartRange | None:
        """Of one that waits; None: not even the earliest is known."""
        number = self.line.number_of[job_id]
        earliest_ms = self._play(_EARLY, number).starts_ms()
        if earliest_ms is None:
            return None
        latest_ms = self._play(_LATE, number).starts_ms()
        return StartRange(earliest_ms, None if latest_ms is None else max(earliest_ms, latest_ms))

    def _play(self, pace: _Pace, number: int) -> "_Play":
        if pace not in self._grounds:
            self._grounds[pace] = _Ground(self._state, self._asked, self._decided, pace)
        ground = self._grounds[pace]
        if self._idle is None:
            tiers = {kind.request.tier for kind in self.line.kinds}
            self._idle = self._state.fork(ground.was_free | ~ground.is_busy, tiers)
        return _Play(ground, self._idle, self.line, number)


class _Ground:
    """How a play begins at one pace: who holds what, and until when. ``held``: what is held for each job."""

    def __init__(self, state: FleetState, asked: Question, decided: Plan, pace: _Pace) -> None:
        self.asked, self.pace, self._layout = asked, pace, state.layout
        self.holdings = Holdings(asked.workload.tenancy)
        self.ends: list[_End] = []
        self.is_busy: Flags = np.zeros(len(state.layout.uuids), dtype=np.bool_)
        holds = _holds(asked, decided) if pace.keeps_holds else ()
        self.held = [(job_id, state.layout.gpu_indices(uuids)) for job_id, uuids in holds]
        self._begin(decided)
        heapq.heapify(self.ends)
        self.was_free: Flags = state.is_free.copy()

    def _begin(self, decided: Plan) -> None:
        asked, pace, layout, now_ms = self.asked, self.pace, self._layout, self.asked.workload.now_ms
        due_ms = {item.victim: now_ms + int(item.notice_s * 1000) for item in decided.reclaims}
        keeps = _keeps(asked, decided)
        for attempt in asked.workload.running:
            kept, holder = keeps.get(attempt.attempt_id, frozenset()), (attempt.tenant_id, attempt.tier)
            if kept:  # it shrinks: its job goes on there, whatever the stop is due for
                whole = replace(attempt, ends_ms=None) if attempt.is_stopping else attempt
                goes_on_ms = now_ms + pace.left_ms(whole, now_ms)
                self._will_end(goes_on_ms, layout.gpu_indices(uuid for uuid in attempt.gpus if uuid in kept), holder)
            at_ms = now_ms + pace.left_ms(attempt, now_ms)
            given = layout.gpu_indices(uuid for uuid in attempt.gpus if uuid not in kept)
            self._will_end(min(at_ms, due_ms.get(attempt.attempt_id, at_ms)), given, holder)
        queue = {job.job_id: job for job in asked.queue} if decided.placements else {}
        for placed in decided.placements:
            job = queue[placed.job_id]
            gpus = layout.gpu_indices(uuid for _, part in placed.parts for uuid in part)
            self._will_end(now_ms + pace.run_ms(job, asked.policy), gpus, (job.tenant_id, job.tier))

    def _will_end(self, at_ms: int, gpus: Ints, holder: tuple[TenantId, str]) -> None:
        self.holdings.add(*holder, len(gpus))
        self.is_busy[gpus] = True
        self.ends.append((at_ms, len(self.ends), gpus, holder))


class _Play:
    """The queue up to one job in its order, on a fork of the fleet, as attempts end. Nothing is reclaimed but what is
    decided already.
    """

    def __init__(self, ground: _Ground, idle: FleetState, line: Line, asked_for: int) -> None:
        self._asked, self._pace, self._line, self._asked_for = ground.asked, ground.pace, line, asked_for
        self._num_looks, self._num_kinds = 0, 0
        self._holdings, self._ends = ground.holdings.copy(), ground.ends.copy()
        self._num_ends = len(self._ends)
        self._is_busy, self._held_for, is_free = _NO_FLAGS, _NONE, idle.is_free.copy()
        numbers = ((line.number_of.get(job_id, NOBODY), gpus) for job_id, gpus in ground.held)
        holders = [(number if number <= asked_for else NOBODY, gpus) for number, gpus in numbers]
        self._with_holds = {number for number, _ in holders} - {NOBODY}
        if self._with_holds:
            self._is_busy, self._held_for = ground.is_busy.copy(), np.full(len(is_free), NOBODY, dtype=np.int64)
            for number, gpus in holders:
                self._held_for[gpus] = number
            is_free = ground.was_free | ~(self._is_busy | (self._held_for != NOBODY))
        kinds = line.kinds_apart(self._with_holds) if self._with_holds else line.kinds
        ends = [bisect_right(kind.numbers, asked_for) for kind in kinds]
        self._kinds = [(kind.request, kind.numbers[:end]) for kind, end in zip(kinds, ends, strict=True) if end]
        self._next = [0] * len(self._kinds)
        self._state = idle.fork(is_free, {request.tier for request, _ in self._kinds})

    def starts_ms(self) -> int | None:
        for at_ms in self._moments():
            if self._is_reached(at_ms):
                return at_ms
            if self._num_looks >= MAX_LOOKS or self._num_kinds >= MAX_KINDS:
                return None
        return None

    def _moments(self) -> Iterator[int]:
        """Now, and after each group of ends: what they held is free."""
        now_ms = self._asked.workload.now_ms
        yield now_ms
        while self._ends:
            at_ms = self._ends[0][0]
            until_ms = now_ms + int((at_ms - now_ms) * MOMENTS_APART)
            while self._ends and self._ends[0][0] <= until_ms:
                at_ms, _, gpus, holder = heapq.heappop(self._ends)
                self._holdings.add(*holder, -len(gpus))
                self._give(gpus)
            yield at_ms

    def _give(self, gpus: Ints) -> None:
        """Idle from now on: free, or held where they are held for a job."""
        is_left = ~self._state.is_free[gpus]
        if self._with_holds:
            self._is_busy[gpus] = False
            is_left &= self._held_for[gpus] == NOBODY
        self._state.give(gpus[is_left])

    def _is_reached(self, at_ms: int) -> bool:
        """Who starts now, in the queue's order: whether that comes to the one that is asked for."""
        failed: set[Request] = set()
        heads = [
            (numbers[self._next[which]], which)
            for which, (_, numbers) in enumerate(self._kinds)
            if self._next[which] < len(numbers)
        ]
        heapq.heapify(heads)
        while heads:
            number, which = heapq.heappop(heads)
            request, numbers = self._kinds[which]
            self._num_kinds += 1
            if (request in failed and number not in self._with_holds) or not self._may_have(number):
                continue
            if not self._starts(number, request, at_ms):
                failed.add(request)
                continue
            if number == self._asked_for:
                return True
            self._next[which] += 1
            if self._next[which] < len(numbers):
                heapq.heappush(heads, (numbers[self._next[which]], which))
        return False

    def _may_have(self, number: int) -> bool:
        """Within its tenant's quota."""
        job = self._line.jobs[number]
        return nodes_within(job, self._holdings) >= job.fewest_nodes

    def _starts(self, number: int, request: Request, at_ms: int) -> bool:
        self._num_looks += 1
        has_hold = number in self._with_holds
        own = np.flatnonzero((self._held_for == number) & ~self._is_busy & ~self._state.is_free) if has_hold else _NONE
        if has_hold:
            self._state.give(own)
        chosen = place(self._state, request)
        if chosen is None:
            self._state.take(own)
            return False
        if has_hold:
            self._held_for[self._held_for == number] = NOBODY
        self._take(self._line.jobs[number], at_ms, chosen.gpus)
        return True

    def _take(self, job: WaitingJob, at_ms: int, gpus: Ints) -> None:
        self._state.take(gpus)
        self._holdings.add(job.tenant_id, job.tier, len(gpus))
        if self._with_holds:
            self._is_busy[gpus] = True
        ends_ms = at_ms + self._pace.run_ms(job, self._asked.policy)
        heapq.heappush(self._ends, (ends_ms, self._num_ends, gpus, (job.tenant_id, job.tier)))
        self._num_ends += 1


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
    for held in sorted(decided.holds, key=lambda held: -held.until_ms):  # of one GPU the first that will run there
        yield held.job_id, held.gpus


def _holdings(asked: Question, decided: Plan) -> Holdings:
    """GPUs by tenant and tier: of what runs, and of what this plan places."""
    holdings = Holdings(asked.workload.tenancy)
    for attempt in asked.workload.running:
        holdings.add(attempt.tenant_id, attempt.tier, len(attempt.gpus))
    waiting = {one.job_id: one for one in asked.queue}
    for placed in decided.placements:
        one = waiting[placed.job_id]
        holdings.add(one.tenant_id, one.tier, sum(len(uuids) for _, uuids in placed.parts))
    return holdings
