"""Firm starts: a place that is free soon is kept for its job, whatever comes later with equal or lower right.

A hold that starts within ``queue.firm_within_s``, on GPUs whose jobs all state wall times, makes the start firm: its
latest time is reported to the user. The next cycle reads it (``WaitingJob.firm_start``), and holds the place before it
tries a job of equal or lower right. A job of higher right is tried before: one of a higher tier, one that ran before,
or one within its tenant's guarantee. With exact wall times and no loss the place is free in time, since only jobs that
end before may use it. If it will not be, the start is postponed with a reason, and may become firm again.
(EASY gives this to the head of its queue: Lifka, 1995. Here the head changes as jobs age, and firm starts do not.)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from muster.domain.ids import JobId
from muster.domain.policy.document import Policy
from scheduler.explain import explain
from scheduler.fleet.topology import FleetState, Ints
from scheduler.holds.places import Holds, Place
from scheduler.model import FirmStart, Postponed, Turn, Waiting, WaitingJob, Workload
from scheduler.queue.order import expected_s
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.request import Request

_Right = tuple[int, bool, bool]
"""The right of a job to go first, smaller is first: tier, whether it ran before, and whether it is guaranteed."""


class FirmStarts:
    """The firm starts of one cycle. ``on_change``: called when a place is held, lifted or put back."""

    def __init__(
        self,
        state: FleetState,
        policy: Policy,
        reclaimer: Reclaimer,
        workload: Workload,
        backfill: Holds,
        ordered: Sequence[WaitingJob],
        request_of: Callable[[WaitingJob], Request],
        on_change: Callable[[], None],
    ) -> None:
        self._state, self._policy, self._reclaimer, self._now_ms = state, policy, reclaimer, workload.now_ms
        self._backfill, self._request_of, self._on_change = backfill, request_of, on_change
        self._jobs = {job.job_id: job for job in ordered if job.firm_start is not None or job.postponed is not None}
        due = [
            (self._right(job, is_guaranteed=job.firm_start.is_guaranteed), job.firm_start.latest_ms, job.job_id)
            for job in self._jobs.values()
            if job.firm_start is not None and job.tier in policy.tiers and not reclaimer.holds.are_for(job.job_id)
        ]
        self._due = sorted(due, reverse=True)
        self._postponed: dict[JobId, Postponed] = {}

    def hold_before(self, job: WaitingJob, turn: Turn) -> None:
        """Hold the places that the job must respect, before it is tried in this turn."""
        if not self._due:
            return
        right, together = self._right(job, is_guaranteed=turn is Turn.GUARANTEED), list[WaitingJob]()
        while self._due and self._due[-1][0] <= right:
            together.append(self._jobs[self._due.pop()[2]])
        if together:
            self._hold(together)
            self._on_change()

    @contextmanager
    def open_to(self, job: WaitingJob) -> Iterator[None]:
        """Lift the job's own place inside the context; it is held again afterwards if the job still needs it."""
        if job.firm_start is None or not self._backfill.lift(job.job_id):
            yield
            return
        self._on_change()
        yield
        is_served = self._reclaimer.endings.has_placed(job.job_id) or job.job_id in self._reclaimer.holds
        self._backfill.settle(job.job_id, is_served=is_served)
        self._on_change()

    def with_firm_start(self, waiting: Waiting, places: dict[JobId, Place]) -> Waiting:
        """Return the entry with the firm start, and the last one that was postponed."""
        job, place = self._jobs.get(waiting.job_id), places.get(waiting.job_id)
        # Without a place it stands while GPUs are reclaimed or kept for the job, until it passes.
        if job is not None and job.firm_start is not None and job.firm_start.latest_ms < self._now_ms:
            self._postponed.setdefault(job.job_id, Postponed(job.firm_start.latest_ms, self._why_passed(job)))
        firm_start = None if job is None or job.job_id in self._postponed else job.firm_start
        found = None if place is None else self._made_firm(place, waiting.turn)
        if found is not None and (firm_start is None or found.latest_ms <= firm_start.latest_ms):
            firm_start = found
        postponed = self._postponed.get(waiting.job_id) or (None if job is None else job.postponed)
        if firm_start is None and postponed is None:
            return waiting
        verdict = waiting.verdict if postponed is None else explain.start_postponed(waiting.verdict, postponed)
        return replace(waiting, verdict=verdict, firm_start=firm_start, postponed=postponed)

    def _why_passed(self, job: WaitingJob) -> str:
        """Return why a job for which GPUs are reclaimed or kept has not started by its latest start."""
        if job.job_id in self._reclaimer.holds:
            return "GPUs that are reclaimed for it are in use for longer"
        return "it waits for hosts in place of the ones that it lost"

    def _made_firm(self, place: Place, turn: Turn) -> FirmStart | None:
        if place.latest_ms is None:
            return None
        uuids = tuple(self._state.layout.uuids[gpu] for gpu in place.gpus.tolist())
        return FirmStart(place.latest_ms, uuids, turn is Turn.GUARANTEED)

    def _right(self, job: WaitingJob, *, is_guaranteed: bool) -> _Right:
        tier = self._policy.tiers.get(job.tier)
        return (1 if tier is None else -tier.priority), not job.keep, not is_guaranteed

    def _hold(self, together: Sequence[WaitingJob]) -> None:
        """Hold their places, then seek others for the jobs that lost theirs, then better ones for the rest."""
        kept, lost = list[WaitingJob](), list[tuple[WaitingJob, FirmStart, str]]()
        for job in together:
            firm_start = job.firm_start
            if firm_start is None:
                continue
            gpus = np.unique(self._state.layout.gpu_indices(firm_start.gpus))
            fault = self._fault(job, firm_start, gpus)
            if fault is None:
                self._backfill.reserve(job, gpus, firm_start.latest_ms)
                kept.append(job)
            else:
                lost.append((job, firm_start, fault))
        for job, firm_start, fault in lost:
            if not self._backfill.seek(job, self._request_of(job), firm_start.latest_ms):
                self._postponed[job.job_id] = Postponed(firm_start.latest_ms, fault)
        for job in kept:
            self._backfill.improve(job, self._request_of(job))

    def _fault(self, job: WaitingJob, firm_start: FirmStart, gpus: Ints) -> str | None:
        """Return why the place will not be free and usable in time; None if it will."""
        state, reclaimer = self._state, self._reclaimer
        if not self._backfill.has_firm_starts:
            return "the policy makes no start firm any more"
        if self._backfill.may_be_refused(job):
            return "guarantees of other tenants may keep it pending when its place is free"
        num_out = len(firm_start.gpus) - int(np.count_nonzero(state.tier(job.tier).admitted[gpus]))
        if num_out:
            return f"{num_out} of the {len(firm_start.gpus)} GPUs that were held for it may not be used any more"
        end_ms = firm_start.latest_ms + int(expected_s(job, self._policy) * 1000)
        if (state.cell_closes_ms[state.layout.cell_of_gpu[gpus]] <= end_ms).any():
            return "a host that was held for it closes for planned work before it would end"
        if reclaimer.holds.mask[gpus].any():
            return "a job that goes before it has got GPUs that were held for it"
        coming = reclaimer.coming(firm_start.latest_ms)
        late = np.setdiff1d(gpus[~state.is_free[gpus]], coming)
        if self._now_ms <= firm_start.latest_ms:
            late = np.setdiff1d(late, reclaimer.endings.cleaned())  # the margin is for that
        if len(late) or self._now_ms > firm_start.latest_ms:
            return self._why_late(late)
        if not self._backfill.lets_start(job, firm_start.latest_ms):
            return "its tenant's quota, or one above it, is in use for longer"
        return None

    def _why_late(self, late: Ints) -> str:
        """Return why these GPUs are in use for longer than was reported; none: why it has not started on free ones."""
        if not len(late):
            return "a limit, or the order of the queue, kept it from starting there by then"
        if self._state.is_spare[late].any():
            return "GPUs that were held for it are kept as spares, for gangs that lose hosts"
        if np.isin(late, self._reclaimer.endings.cleaned()).all():
            return "GPUs that were held for it are still being cleaned"
        tier = self._reclaimer.endings.new_tier(late)
        if tier is not None:
            return f"a job that goes before it, of the tier {tier}, has started there"
        return "GPUs that were held for it are in use for longer than the jobs there had stated"
