"""The times at which GPUs in use become free, for the start range of a pending job: early, or late.

Early: each attempt with a wall time ends after a tenth of its remaining time; late: at its end. For an attempt without
one, the time that nine in ten similar jobs did not exceed counts as a wall time; if it outlasts that, its new expected
run time does (``scheduler.queue.order``). Without similar jobs, its age decides. If run times have a power-law
distribution, nine in ten attempts of age a last a/9 more, and one in ten lasts 9a, so the range contains eight in ten.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from operator import attrgetter
from typing import Final

import numpy as np

from muster.domain.ids import AttemptId, GpuUuid, TenantId
from muster.domain.policy.document import Policy
from scheduler.fleet.topology import NEVER_MS, Flags, FleetState, Ints
from scheduler.forecast.end_times import CLEANING_MS, LEAST_LEFT_MS, OVERDUE_MS, expected_end_ms
from scheduler.model import Plan, Question, Reclaim, RunningAttempt, StandingReclaim, WaitingJob
from scheduler.queue.order import expected_s
from scheduler.quota.firm_tiers import firm_guarantees
from scheduler.quota.tenancy import Holdings

EARLY_SHARE: Final = 0.1
AGE_FACTORS: Final = (1 / 9, 9.0)
_UNSAID: Final = -1

Holder = tuple[TenantId, str]
"""The tenant that counts for the GPUs, and their tier."""
_HOLDER: Final = attrgetter("tenant_id", "tier")


@dataclass(frozen=True, slots=True)
class Pace:
    """An assumption about how soon attempts end.

    ``share``: the used share of the remaining wall time or predicted run time; ``of_age``: the remaining time of an
    attempt without either, in its age. ``is_late``: only the job of a hold uses its GPUs; early, any job that ends
    before may use them too.
    """

    share: float
    of_age: float
    cleaning_ms: int
    is_late: bool

    def run_ms(self, job: WaitingJob, policy: Policy) -> int:
        return int(expected_s(job, policy) * 1000 * self.share) + self.cleaning_ms


EARLY: Final = Pace(EARLY_SHARE, AGE_FACTORS[0], 0, is_late=False)
LATE: Final = Pace(1.0, AGE_FACTORS[1], CLEANING_MS, is_late=True)


@dataclass(frozen=True, slots=True)
class _Entries:
    """Columns, with an entry for each set of GPUs that become free at once.

    ``ends_ms``: ``_UNSAID`` without a wall time; ``predicted_ms``: ``_UNSAID`` without similar jobs; ``due_ms``: by a
    notice of this plan.
    """

    started_ms: list[int] = field(default_factory=list)
    ends_ms: list[int] = field(default_factory=list)
    predicted_ms: list[int] = field(default_factory=list)
    due_ms: list[int] = field(default_factory=list)
    uuids: list[Sequence[GpuUuid]] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)

    def add_running(self, attempts: Sequence[RunningAttempt], due_ms: Mapping[AttemptId, int]) -> None:
        self.started_ms.extend([one.started_ms for one in attempts])
        self.ends_ms.extend([_UNSAID if one.ends_ms is None else one.ends_ms for one in attempts])
        self.predicted_ms.extend([_UNSAID if one.predicted_ms is None else one.predicted_ms for one in attempts])
        self.due_ms.extend([due_ms.get(one.attempt_id, NEVER_MS) for one in attempts])
        self.uuids.extend([one.gpus for one in attempts])
        self.holders.extend(map(_HOLDER, attempts))

    def add_placed(self, now_ms: int, ends_ms: int, uuids: Sequence[GpuUuid], job: WaitingJob) -> None:
        self.started_ms.append(now_ms)
        self.ends_ms.append(ends_ms)
        self.predicted_ms.append(_UNSAID)
        self.due_ms.append(NEVER_MS)
        self.uuids.append(uuids)
        self.holders.append(_HOLDER(job))


class Releases:
    """Running attempts and placements of a plan, by number, with the GPUs that each releases and their holder.

    ``holdings``: of all of them. ``is_busy``: of each GPU of the fleet.
    """

    def __init__(self, state: FleetState, question: Question, decided: Plan) -> None:
        entries = _entries(question, decided)
        self._now_ms = question.workload.now_ms
        told = entries.started_ms, entries.ends_ms, entries.predicted_ms, entries.due_ms
        self._started_ms, self._ends_ms, self._predicted_ms, self._due_ms = (
            np.array(moments, dtype=np.int64) for moments in told
        )
        for index in np.flatnonzero(self._predicted_ms != _UNSAID).tolist():
            said = entries.started_ms[index], entries.predicted_ms[index]
            self._predicted_ms[index] = expected_end_ms(*said, self._now_ms, question.policy)
        self.holders: Sequence[Holder] = entries.holders
        sizes = list(map(len, entries.uuids))
        self._bounds = np.append(0, np.cumsum(sizes, dtype=np.int64)).tolist()
        numbers = map(state.layout.index_of.get, chain.from_iterable(entries.uuids), repeat(-1))
        self._gpus: Ints = np.fromiter(numbers, dtype=np.int64, count=self._bounds[-1])
        self._is_known = self._gpus >= 0
        self.is_busy: Flags = np.zeros(len(state.layout.uuids), dtype=np.bool_)
        self.is_busy[self._gpus[self._is_known]] = True
        self.holdings = _holdings(state, question, entries)

    def moments_ms(self, pace: Pace) -> Ints:
        """Return when each releases its GPUs."""
        now_ms = self._now_ms
        is_said = self._ends_ms >= now_ms - OVERDUE_MS
        left_ms = np.maximum(np.where(is_said, self._ends_ms, self._predicted_ms) - now_ms, 0) * pace.share
        of_age_ms = np.maximum(now_ms - self._started_ms, LEAST_LEFT_MS) * pace.of_age
        is_believed = is_said | (self._predicted_ms != _UNSAID)
        at_ms = now_ms + np.where(is_believed, left_ms, of_age_ms).astype(np.int64) + pace.cleaning_ms
        return np.minimum(at_ms, self._due_ms)

    def num_gpus(self, number: int) -> int:
        """Return its number of GPUs, with the ones that the fleet does not know."""
        size: int = self._bounds[number + 1] - self._bounds[number]
        return size

    def gpus(self, number: int) -> Ints:
        own = slice(self._bounds[number], self._bounds[number + 1])
        gpus: Ints = self._gpus[own][self._is_known[own]]
        return gpus


def _entries(question: Question, decided: Plan) -> _Entries:
    now_ms = question.workload.now_ms
    due_ms = {item.victim: now_ms + int(item.notice_s * 1000) for item in decided.reclaims}
    keeps = _keeps(question, decided)
    entries = _Entries()
    entries.add_running([one for one in question.workload.running if one.attempt_id not in keeps], due_ms)
    for attempt in question.workload.running if keeps else ():
        if attempt.attempt_id in keeps:
            entries.add_running([_without(attempt, keeps[attempt.attempt_id])], due_ms)
            entries.add_running([_going_on(attempt, keeps[attempt.attempt_id])], {})
    queue = {job.job_id: job for job in question.queue} if decided.placements else {}
    for placed in decided.placements:
        job = queue[placed.job_id]
        uuids = tuple(chain.from_iterable(part for _, part in placed.parts))
        entries.add_placed(now_ms, now_ms + int(expected_s(job, question.policy) * 1000), uuids, job)
    return entries


def _without(attempt: RunningAttempt, kept: Collection[GpuUuid]) -> RunningAttempt:
    return replace(attempt, gpus=tuple(uuid for uuid in attempt.gpus if uuid not in kept))


def _going_on(attempt: RunningAttempt, kept: Collection[GpuUuid]) -> RunningAttempt:
    """Return the part of a shrinking attempt with which its job continues, whatever the stop's deadline."""
    gpus = tuple(uuid for uuid in attempt.gpus if uuid in kept)
    return replace(attempt, gpus=gpus, ends_ms=None if attempt.is_stopping else attempt.ends_ms)


def _keeps(question: Question, decided: Plan) -> dict[AttemptId, frozenset[GpuUuid]]:
    """Return the GPUs with which elastic victims continue if they give a part of their own."""
    reclaims: Sequence[StandingReclaim | Reclaim] = [*question.workload.reclaims, *decided.reclaims]
    return {item.victim: frozenset(item.keeps) for item in reclaims if item.keeps}


def _holdings(state: FleetState, question: Question, entries: _Entries) -> Holdings:
    held: Counter[Holder] = Counter()
    for holder, uuids in zip(entries.holders, entries.uuids, strict=True):
        held[holder] += len(uuids)
    tenancy = question.workload.tenancy
    holdings = Holdings(tenancy, firm_guarantees(state, question.policy, tenancy, question.workload.running))
    for holder, num_gpus in held.items():
        holdings.add(*holder, num_gpus)
    return holdings
