"""The forward simulation of the queue at one pace: which jobs start when, as GPUs become free.

It uses the solver that places, on a fork of the fleet. Later jobs that go first, and failures, are not foreseen;
nothing is reclaimed except what is decided already.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from muster.domain.ids import JobId, NodeId
from scheduler.fleet.maintenance_end import reopenings_ahead
from scheduler.fleet.maintenance_start import starting
from scheduler.fleet.topology import Flags, FleetState, Ints
from scheduler.forecast.queue_snapshot import QueueSnapshot
from scheduler.forecast.release_times import Holder, Pace, Releases
from scheduler.model import Plan, Question, WaitingJob
from scheduler.queue.order import expected_s
from scheduler.solve.elastic import nodes_within
from scheduler.solve.request import Request
from scheduler.solve.solver import most_nodes, place

MAX_STARTS: Final = 64
"""Most gangs that are placed, which bounds the cost of the first answer about a long queue."""
MAX_CHECKS: Final = 1_000
"""Most gangs that are tried."""

MOMENTS_APART: Final = 1.05
"""Ends are grouped if their times until now differ by less than this factor: a range needs no more."""

_NONE: Final[Ints] = np.zeros(0, dtype=np.int64)

_End = tuple[int, int, Ints, Holder]
"""An end: its time, a number that distinguishes it from others at that time, its GPUs, and their holder."""


class ForwardSimulation:
    """One simulation. ``idle``: the fleet as if nothing were held for a job. ``holds``: the GPUs held for each job.

    ``at_ms``: the time that is simulated, or was the last. ``num_working``: the GPUs in use after the last time that
    was simulated to its end; None: after none.
    """

    def __init__(
        self,
        question: Question,
        decided: Plan,
        pace: Pace,
        line: QueueSnapshot,
        releases: Releases,
        idle: FleetState,
        holds: Sequence[tuple[JobId, Ints]],
    ) -> None:
        self._question, self._pace, self._line, self._releases = question, pace, line, releases
        moments_ms = releases.moments_ms(pace)
        self._order = moments_ms.argsort(kind="stable").tolist()
        self._ends_ms, self._num_ended = moments_ms[self._order], 0
        self._begun: list[_End] = []
        self._reopenings = reopenings_ahead(question.workload)[::-1]
        self._holdings, self._is_busy = releases.holdings.copy(), releases.is_busy.copy()
        is_free: Flags = idle.is_free.copy()
        self._hold_for: Ints = np.zeros(len(is_free), dtype=np.int64)
        """One more than the number of the job for which each GPU is held; 0 if for none."""
        self._with_holds: dict[int, Ints] = {}
        for job_id, gpus in holds if pace.is_late else ():
            number = line.number_of.get(job_id)
            if number is not None:  # else its job has been placed
                self._hold_for[gpus] = number + 1
                self._with_holds[number] = np.union1d(self._with_holds.get(number, _NONE), gpus)
                is_free[gpus] = False
        self._kinds = line.kinds_apart(self._with_holds) if self._with_holds else line.kinds
        self._next = [0] * len(self._kinds)
        self.state = idle.fork(is_free, {kind.request.tier for kind in self._kinds})
        self._kept_from = _kept_from(question, line, decided)
        self._num_starts, self._num_checks, self.at_ms = 0, 0, question.workload.now_ms
        self.num_working: int | None = None

    def starts(self) -> Iterator[int]:
        """Yield the numbers of jobs that start, at ``at_ms``, until nothing ends any more or the limits are reached."""
        for at_ms in self._moments():
            self.at_ms = at_ms
            yield from self._starting()
            if self.is_cut_short:
                return
            self.num_working = int(np.count_nonzero(self._is_busy))

    @property
    def is_cut_short(self) -> bool:
        return self._num_starts >= MAX_STARTS or self._num_checks >= MAX_CHECKS

    def _moments(self) -> Iterator[int]:
        """Yield now, and the time after each group of ends of jobs or of planned work, with their GPUs free."""
        now_ms = self._question.workload.now_ms
        yield now_ms
        while (at_ms := self._next_ms()) is not None:
            until_ms = now_ms + int((at_ms - now_ms) * MOMENTS_APART)
            given, opened = [_NONE], set[NodeId]()
            while (next_ms := self._next_ms()) is not None and next_ms <= until_ms:
                at_ms = next_ms
                if self._reopenings and self._reopenings[-1][0] == at_ms:
                    opened.add(self._reopenings.pop()[1])
                else:
                    given.append(self._end_next())
            self._give(np.concatenate(given))
            if opened:
                self.state = self.state.reopened(opened)
            yield at_ms

    def _next_ms(self) -> int | None:
        """Return when the next job or planned work ends; None if none does."""
        end_ms = self._next_end_ms()
        if not self._reopenings:
            return end_ms
        reopens_ms = self._reopenings[-1][0]
        return reopens_ms if end_ms is None else min(end_ms, reopens_ms)

    def _next_end_ms(self) -> int | None:
        ends_ms = [self._begun[0][0]] if self._begun else []
        if self._num_ended < len(self._order):
            ends_ms.append(int(self._ends_ms[self._num_ended]))
        return min(ends_ms, default=None)

    def _end_next(self) -> Ints:
        """Return the GPUs of the next end; of equal ends the one that ran before the simulation."""
        if self._begun and (self._num_ended == len(self._order) or self._begun[0][0] < self._ends_ms[self._num_ended]):
            _, _, gpus, (tenant_id, tier) = heapq.heappop(self._begun)
            self._holdings.add(tenant_id, tier, -len(gpus))
            return gpus
        number = self._order[self._num_ended]
        self._num_ended += 1
        tenant_id, tier = self._releases.holders[number]
        self._holdings.add(tenant_id, tier, -self._releases.num_gpus(number))
        return self._releases.gpus(number)

    def _give(self, gpus: Ints) -> None:
        """Mark the GPUs as idle: free, or kept for the job that holds them."""
        self._is_busy[gpus] = False
        self.state.give(gpus[~self.state.is_free[gpus] & (self._hold_for[gpus] == 0)])

    def _starting(self) -> Iterator[int]:
        """Yield the jobs that start now, in the queue's order."""
        heads = list(self._heads())
        heapq.heapify(heads)
        failed: set[int] = set()
        while heads and not self.is_cut_short:
            number, which = heapq.heappop(heads)
            request, numbers = self._kinds[which].request, self._kinds[which].numbers
            if (id(request) in failed and number not in self._with_holds) or not self._may_have(number):
                continue
            if not self._starts_now(number, request):
                failed.add(id(request))
                continue
            self._next[which] += 1
            if self._next[which] < len(numbers):
                heapq.heappush(heads, (numbers[self._next[which]], which))
            yield number

    def _heads(self) -> Iterator[tuple[int, int]]:
        """Yield the first job of each kind for which a count shows that there may be room."""
        has_room: dict[int, bool] = {}
        for which, kind in enumerate(self._kinds):
            if self._next[which] == len(kind.numbers):
                continue
            number, request = kind.numbers[self._next[which]], kind.request
            if number in self._with_holds:
                if self._num_idle(number, request.tier) >= request.nodes * request.gpus_per_node:
                    yield number, which
                continue
            if id(request) not in has_room:
                has_room[id(request)] = most_nodes(self.state, request) >= request.nodes
            if has_room[id(request)]:
                yield number, which

    def _num_idle(self, number: int, tier: str) -> int:
        """Return how many GPUs are free, or held for the job and idle."""
        own = self._own(number)
        return int(self.state.tier(tier).counts.sum() + np.count_nonzero(~self._is_busy[own]))

    def _may_have(self, number: int) -> bool:
        """Return whether the job is within its tenant's quota, also where that is kept for others.

        Quota is kept for jobs with a hold that starts before this one's expected end.
        """
        job = self._line.jobs[number]
        if nodes_within(job, self._holdings) < job.fewest_nodes:
            return False
        if not self._kept_from:
            return True
        until_ms = self.at_ms + expected_s(job, self._question.policy) * 1000
        has_place = number in self._kept_from
        others = [
            one
            for one, from_ms in self._kept_from.items()
            if from_ms < until_ms and (one < number if has_place else one != number)
        ]
        return not others or self._may_have_alongside(job, others)

    def _may_have_alongside(self, job: WaitingJob, others: Sequence[int]) -> bool:
        holdings = self._holdings.copy()
        for other in map(self._line.jobs.__getitem__, others):
            holdings.keep(other.tenant_id, other.tier, other.fewest_gpus)
        return nodes_within(job, holdings) >= job.fewest_nodes

    def _starts_now(self, number: int, request: Request) -> bool:
        own = self._own(number) if number in self._with_holds else _NONE
        idle = own[~self._is_busy[own]]
        self._num_checks += 1
        if len(idle):
            self.state.give(idle)
        run_s = expected_s(self._line.jobs[number], self._question.policy)
        chosen = place(self.state, starting(self.state, request, self.at_ms, run_s))
        if chosen is None:
            if len(idle):
                self.state.take(idle)
            return False
        self._hold_for[own] = 0
        self._kept_from.pop(number, None)
        self._begin(self._line.jobs[number], chosen.gpus)
        return True

    def _own(self, number: int) -> Ints:
        """Return the GPUs that are held for the job, in use or not."""
        gpus = self._with_holds[number]
        own: Ints = gpus[self._hold_for[gpus] == number + 1]
        return own

    def _begin(self, job: WaitingJob, gpus: Ints) -> None:
        self._num_starts += 1
        self.state.take(gpus)
        self._is_busy[gpus] = True
        self._holdings.add(job.tenant_id, job.tier, len(gpus))
        end = (self.at_ms + self._run_ms(job), self._num_starts, gpus, (job.tenant_id, job.tier))
        heapq.heappush(self._begun, end)

    def _run_ms(self, job: WaitingJob) -> int:
        return self._pace.run_ms(job, self._question.policy)

    def work_running(self) -> float:
        """Return the GPU-milliseconds that running jobs still need."""
        sizes = [self._releases.num_gpus(one) for one in self._order[self._num_ended :]]
        left = float((self._ends_ms[self._num_ended :] - self.at_ms) @ np.array(sizes, dtype=np.float64))
        return left + sum(len(gpus) * (at_ms - self.at_ms) for at_ms, _, gpus, _ in self._begun)


def _kept_from(question: Question, line: QueueSnapshot, decided: Plan) -> dict[int, int]:
    """Return by number when jobs with holds are to start; empty if no quota binds."""
    holds = decided.holds if question.workload.tenancy.quotas else ()
    numbers = ((line.number_of.get(held.job_id), held.until_ms) for held in holds)
    return {number: from_ms for number, from_ms in numbers if number is not None}
