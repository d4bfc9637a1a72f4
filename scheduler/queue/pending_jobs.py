"""The decision for a job that does not start: reclaim for it, hold a place for it, or report why neither."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from muster.domain.ids import TenantId
from muster.domain.policy.document import Policy
from scheduler.explain import explain
from scheduler.explain.exclusions import Funnel
from scheduler.fleet.topology import FleetState
from scheduler.holds.outcomes import NO_REFUSAL, Coming, Notified, Obstacle, Outcome, Refused
from scheduler.holds.places import Holds
from scheduler.model import NO_TENANT, Hold, Verdict, WaitingJob, Workload
from scheduler.queue.order import expected_s
from scheduler.queue.report import QueueReport
from scheduler.quota.tenancy import Holdings, Limit
from scheduler.reclaim.host_replacement import last_parts, missing_hosts
from scheduler.reclaim.lending import Claim
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.placing import Placing, could_be
from scheduler.solve.recovery import replan, still_good, wait_until_ms
from scheduler.solve.solver import Request, most_nodes

MAX_BENEFICIARIES: Final = 64
"""Reclaims are chosen for at most so many jobs in a cycle; the next cycle continues."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A verdict. ``is_of_all``: it is valid for each job with the same request."""

    verdict: Verdict
    is_of_all: bool = False


class PendingJobs:
    """The decisions for jobs that do not start.

    ``has_hopeful``: whether a pending job could use GPUs that are idle, alone or with others that become free.
    """

    def __init__(
        self,
        state: FleetState,
        policy: Policy,
        workload: Workload,
        holdings: Holdings,
        placing: Placing,
        queue_report: QueueReport,
        reclaimer: Reclaimer,
        backfill: Holds,
    ) -> None:
        self._state, self._policy, self._workload, self._holdings = state, policy, workload, holdings
        self._placing, self._queue_report, self._reclaimer, self._backfill = placing, queue_report, reclaimer, backfill
        self._reasons = queue_report.reasons
        self._examination = self._reasons.examination
        self._verdicts: dict[tuple[Request, TenantId, bool, Hashable, Hashable], Verdict] = {}
        self._hold_over: set[tuple[TenantId, str]] = set()
        self._num_beneficiaries = 0
        self._awaits_min_run = False
        """Whether a job waits for minimum run times, with no place held."""
        self.has_hopeful = False

    def later(self, job: WaitingJob, request: Request, limit: Limit) -> Verdict | None:
        """Return the verdict of a job that ``limit`` keeps pending now, with a place at a later time.

        By that time enough of the limit is released. Without a place, jobs that end before it starts would take its
        GPUs as they run. By EASY only the first job of each limit gets one, and only if it waits for GPUs too: no idle
        GPU is held for lack of quota.
        """
        request, alike = request.at_least(), (limit.tenant_id, job.tier)
        if not self._examination.admits():
            return None
        if not self._backfill.books_for_quota():
            if alike in self._hold_over or most_nodes(self._state, request) >= request.nodes:
                return None
            self._hold_over.add(alike)
        if not could_be(self._state, request):
            return None
        through = self._reasons.funnel(request)
        held = self._queue_report.hold(job, request, through, reserved=limit)
        return None if held is None else explain.quota_reserved(job, limit, held)

    def verdict(self, job: WaitingJob, request: Request) -> Verdict:
        """Return the verdict of a job that found no place: equal jobs get the same one."""
        claim = self._reclaimer.lending.claim(job.tenant_id, job.tier, job.fewest_gpus)
        if self._backfill.is_lifted(job):
            return self._refused_or_hold(job, request, claim).verdict
        told_apart_by = self._backfill.distinguishing_key(job)
        meets = self._reclaimer.distinguishing_key(request, claim, expected_s(job, self._policy))
        tenant = NO_TENANT if claim is None else job.tenant_id
        alike = request, tenant, self._is_beyond(job, claim), told_apart_by, meets
        if alike not in self._verdicts and self.is_put_off(job):
            return self.put_off()
        if alike not in self._verdicts:
            found = self._refused_or_hold(job, request, claim)
            if not found.is_of_all:
                return found.verdict
            self._verdicts[alike] = found.verdict
        return self._verdicts[alike]

    def is_put_off(self, job: WaitingJob) -> bool:
        """Return whether this cycle does not examine the job. A firm start is either kept or postponed at once."""
        return job.firm_start is None and not self._examination.admits()

    def put_off(self) -> Verdict:
        """Return the verdict of a job that this cycle does not examine."""
        self.has_hopeful = True
        return explain.EXAMINED_LATER

    def _refused_or_hold(self, job: WaitingJob, request: Request, claim: Claim | None) -> "_Found":
        """Reclaim for the job, or hold a place for it; else the verdict is that of all jobs with its request."""
        can_ever_fit = could_be(self._state, request)
        self.has_hopeful = self.has_hopeful or can_ever_fit
        through = self._reasons.funnel(request)
        reserved = self._backfill.reserved(job)
        if reserved is not None:  # no reclaim would help
            held = self._queue_report.hold(job, request, through, reserved=reserved) if can_ever_fit else None
            return _Found(explain.quota_reserved(job, reserved, held))
        outcome: Outcome = self._reclaim(job, request.at_least(), claim) if can_ever_fit else Refused()
        if isinstance(outcome, Notified):
            self._examination.computed()
            if outcome.frees_more:
                self._queue_report.hold_again()
            return _Found(explain.reclaimed_for_it(request, outcome.until_ms, outcome.num_gpus, through))
        if can_ever_fit or self._backfill.could_be_later(request):
            refused = outcome if isinstance(outcome, Refused) else NO_REFUSAL
            held = self._queue_report.hold(job, request, through, refused, is_coming=isinstance(outcome, Coming))
            if held is not None and held.is_by_reclaim:
                helped = replace(refused, until_ms=held.until_ms)
                room = self._reasons.room(request)
                return _Found(explain.no_room(room, request, helped, self._policy, through, hold=held))
            if held is not None:
                return _Found(explain.hold_for_it(request, held, through))
        return self._refused(request, outcome, through)

    def _refused(self, request: Request, outcome: Coming | Refused, through: Funnel) -> "_Found":
        """Return the verdict without a hold; the first job that waits for minimum run times gets its own time."""
        is_first = False
        if isinstance(outcome, Refused) and outcome.obstacle is Obstacle.MIN_RUN:
            is_first, self._awaits_min_run = not self._awaits_min_run, True
            outcome = replace(outcome, is_behind=not is_first)
        passed = self._backfill.in_the_way(request.at_least())
        room = self._reasons.room(request)
        verdict = explain.no_room(room, request, outcome, self._policy, through, hold_until_ms=passed)
        return _Found(verdict, is_of_all=not is_first)

    def swap_or_wait(self, job: WaitingJob, request: Request) -> Verdict | None:
        """Let a gang that lost hosts of its required domain wait with the others, if none can replace them."""
        until_ms = wait_until_ms(job, request, self._policy, self._workload)
        if until_ms is None or replan(self._state, request, job.keep) is not None:
            return None
        kept = still_good(self._state, request, job.keep)
        if kept is None:
            return None
        reclaimed = self._replacement_reclaimed(job, request)
        if reclaimed is not None:
            return reclaimed
        through, uuids = self._reasons.funnel(request), self._state.layout.uuids
        self._state.take(kept)
        self._reclaimer.holds.cover(kept)
        held = Hold(job.job_id, tuple(uuids[gpu] for gpu in kept), len(kept), until_ms)
        self._queue_report.holds.append(held)
        self.has_hopeful = True
        return explain.awaits_replacement(request, held, through)

    def _replacement_reclaimed(self, job: WaitingJob, request: Request) -> Verdict | None:
        """Reclaim hosts in place of the lost ones, at once, if candidates in its domain make the swap possible."""
        reclaimer, missing = self._reclaimer, missing_hosts(self._state, request, job.keep)
        if missing is None or self._backfill.reserved(job) is not None or self._num_beneficiaries == MAX_BENEFICIARIES:
            return None
        through, run_s = self._reasons.funnel(request), expected_s(job, self._policy)
        claim = reclaimer.lending.claim(job.tenant_id, job.tier, job.fewest_gpus)
        outcome = reclaimer.replace_hosts(job.job_id, request, missing, job.keep, claim, run_s=run_s)
        if not isinstance(outcome, Notified):
            return None
        self._is_reclaimed_for(job)
        self.has_hopeful = True
        if outcome.frees_more:
            self._queue_report.hold_again()
        return explain.replacement_reclaimed(request, len(missing.kept), outcome.until_ms, through)

    def try_beneficiary(self, job: WaitingJob, request: Request) -> Verdict | None:
        """Try a beneficiary by itself: it alone may take the GPUs that are held for it."""
        reclaimer, promises, self.has_hopeful = self._reclaimer, self._reclaimer.holds, True
        frees_more = reclaimer.count_on(job.job_id)
        promises.lift(job.job_id)
        least, run_s = request.at_least(), expected_s(job, self._policy)
        last = last_parts(self._state, job, promises, self._workload.now_ms)
        is_swap = bool(last) and reclaimer.still_suffices(job.job_id, least, run_s, last=last)
        if last and not is_swap:
            self.withdraw(job, "it would no longer replace the hosts that the job lost")
            return self._swap_again(job, request)
        is_ready = not is_swap or replan(self._state, request, last) is not None
        if is_ready and self._placing.start_from_hold(job, request):
            reclaimer.withdraw(job.job_id, "the job that it was for has been placed")
            return None
        through = self._reasons.funnel(request)
        if not is_swap and not reclaimer.still_suffices(job.job_id, least, run_s):
            self.withdraw(job, "it would no longer free enough GPUs for the job that it was for")
            return explain.planned_again(request, through)
        missing = missing_hosts(self._state, request, last) if is_swap else None
        held = promises.hold_of(job.job_id)
        num_awaited = int(np.count_nonzero(~self._state.is_free[held]))
        promises.hold(job.job_id, held)
        if frees_more:
            self._queue_report.hold_again()
        if missing is not None:
            num_kept, deadline_ms = len(missing.kept), promises.deadline_ms(job.job_id)
            return explain.replacement_reclaimed(request, num_kept, deadline_ms, through, stands=True)
        return explain.reclaimed_for_it(request, promises.deadline_ms(job.job_id), num_awaited, through, stands=True)

    def withdraw(self, job: WaitingJob, why: str) -> None:
        """Withdraw the reclaim for the job, which then gets no GPUs by it."""
        self._reclaimer.withdraw(job.job_id, why)
        self._reclaimer.lending.comes(job.tenant_id, job.tier, -job.fewest_gpus)

    def _swap_again(self, job: WaitingJob, request: Request) -> Verdict | None:
        """Keep its good hosts in this very cycle while it waits for others; else start it where it fits."""
        awaited = self.swap_or_wait(job, request)
        if awaited is not None or self._placing.start_from_hold(job, request):
            return awaited
        return explain.planned_again(request, self._reasons.funnel(request))

    def _reclaim(self, job: WaitingJob, request: Request, claim: Claim | None) -> Outcome:
        if self._num_beneficiaries == MAX_BENEFICIARIES:
            return Refused()
        is_beyond, run_s = self._is_beyond(job, claim), expected_s(job, self._policy)
        outcome = self._reclaimer.choose(job.job_id, request, claim, is_beyond=is_beyond, run_s=run_s)
        if isinstance(outcome, Notified):
            self._is_reclaimed_for(job)
        return outcome

    def _is_reclaimed_for(self, job: WaitingJob) -> None:
        self._num_beneficiaries += 1
        comes_to(self._holdings, self._reclaimer, job, job.fewest_gpus)

    def _is_beyond(self, job: WaitingJob, claim: Claim | None) -> bool:
        """Return whether it may take nothing back: its tenant, or one above it, would then exceed the guarantee."""
        return claim is None and self._reclaimer.lending.has_guarantee(job.tenant_id, job.tier)


def comes_to(holdings: Holdings, reclaimer: Reclaimer, job: WaitingJob, num_gpus: int) -> None:
    """Count the held GPUs of a pending job for its tenant: no other job gets the quota of them meanwhile."""
    holdings.keep(job.tenant_id, job.tier, num_gpus)
    reclaimer.lending.comes(job.tenant_id, job.tier, num_gpus)
