"""The planner: whole gangs onto admitted, free GPUs of one cohort; reclaim where that is due; a sentence for the rest.

Pure: the same fleet, queue, workload and policy give the same plan (I19). Jobs go by ``scheduler.order``; a gang that
does not fit is passed by smaller ones behind it, but for the place that is held for it (``scheduler.backfill``). Jobs
with equal requests fail together, so a queue of ten thousand jobs that cannot be placed costs little more than one. An
elastic job takes as many of the hosts that it wishes for as there are, and no fewer than its fewest; for those alone
anything is reclaimed.
"""

from collections.abc import Hashable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from muster.domain.ids import TenantId
from muster.domain.policy import Policy
from muster.domain.queue_policy import CONSERVATIVE
from muster.domain.wait_reasons import WaitReason
from scheduler import explain
from scheduler.backfill import EasyBackfill
from scheduler.closing import closing_of
from scheduler.conservative import ConservativeBackfill
from scheduler.elastic import grow, nodes_of
from scheduler.fair_share import FairShares, in_turns
from scheduler.fragmentation import mix_of
from scheduler.funnel import Funnel, funnel
from scheduler.held_places import HeldPlaces
from scheduler.lending import Claim
from scheduler.model import (
    NO_TENANT,
    GpuView,
    Growth,
    Held,
    Lapse,
    Parts,
    Placement,
    Plan,
    Reclaim,
    RunningAttempt,
    StandingReclaim,
    Verdict,
    Waiting,
    WaitingJob,
    Withdrawal,
    Workload,
)
from scheduler.order import expected_s, in_order, is_passed_enough
from scheduler.outcomes import Coming, Notified, Obstacle, Outcome, Refused
from scheduler.placing import Placing, could_be
from scheduler.promises import Promises
from scheduler.quota_gate import QuotaGate
from scheduler.reclaim import Reclaimer
from scheduler.recovery import replan, still_good, wait_until_ms
from scheduler.replacing import last_parts, missing_hosts
from scheduler.solver import Request, request_of
from scheduler.spares import Spares
from scheduler.tenancy import Holdings, Tenancy
from scheduler.topology import FleetState
from scheduler.waiters import Waiters

__all__ = [
    "GpuView",
    "Lapse",
    "Parts",
    "Placement",
    "Plan",
    "Reclaim",
    "RunningAttempt",
    "StandingReclaim",
    "Waiting",
    "WaitingJob",
    "Withdrawal",
    "Workload",
    "plan",
    "plan_on",
]

MAX_BENEFICIARIES: Final = 64
"""Reclaims are chosen for so many jobs in a cycle; the next cycle goes on."""


def plan(
    gpus: Sequence[GpuView],
    queue: Iterable[WaitingJob],
    policy: Policy,
    workload: Workload | None = None,
    *,
    levels: Sequence[str] | None = None,
) -> Plan:
    """Place what fits, in order; say of each other job why it waits; reclaim and withdraw as the policy has it.

    ``queue`` holds every waiting job that a standing reclaim is for: one that is missing waits no more, and what was
    being reclaimed for it is withdrawn. ``levels`` name the entries of the GPUs' paths, widest first; by default the
    policy's.
    """
    return plan_on(FleetState(gpus, policy, levels), queue, policy, workload)


def plan_on(state: FleetState, queue: Iterable[WaitingJob], policy: Policy, workload: Workload | None = None) -> Plan:
    """As ``plan``, on a state that stands already: afterwards it has taken what was placed and what is held."""
    now_ms = None if workload is None else workload.now_ms
    cycle = _Cycle(state, policy, workload, in_order(list(queue), policy, now_ms, len(state.layout.uuids)))
    cycle.run()
    return cycle.plan()


@dataclass(frozen=True, slots=True)
class _Found:
    """``is_of_all``: it holds for each job with the same request."""

    verdict: Verdict
    is_of_all: bool = False


class _Cycle:
    """``reclaimer``, ``backfill``, ``spares``: None without a workload; then nothing is known but fleet and queue."""

    def __init__(
        self, state: FleetState, policy: Policy, workload: Workload | None, ordered: Sequence[WaitingJob]
    ) -> None:
        self.state, self.policy, self.workload, self.ordered = state, policy, workload, ordered
        self.reclaimer: Reclaimer | None = None
        self.backfill: HeldPlaces | None = None
        self.spares: Spares | None = None
        self.holdings = Holdings(Tenancy() if workload is None else workload.tenancy)
        if workload is not None:
            self._begin(workload)
        running = () if workload is None else workload.running
        self.shares = FairShares(state, policy, running, ordered, self.holdings)
        self.quota = QuotaGate(state, self.holdings, self._is_passed_enough, self.reclaimer, self.backfill)
        self.placing = Placing(state, policy, self.holdings, self.reclaimer, self.backfill)
        self.waiters = Waiters(self.shares, self._is_passed_enough, self._funnel, self.backfill)
        self.verdicts: dict[tuple[Request, TenantId, bool, Hashable, Hashable], Verdict] = {}
        self.num_beneficiaries = 0
        self.growths: list[Growth] = []
        self.awaits_min_run = False
        """Whether anybody waits for minimum run times, with no place held."""
        self.has_hopeful = False
        """Whether anybody waits who could use GPUs that are idle, now or with others that come free."""

    def run(self) -> None:
        for job, turn in in_turns(self.ordered, self.shares, self.policy, self._is_passed_enough):
            self.waiters.is_on(job, turn)
            with nullcontext() if self.spares is None else self.spares.open_to(job):
                verdict = self._decide(job)
            if verdict is not None:
                self.waiters.tell(job, verdict)
        if self.has_hopeful or (self.workload is not None and self.workload.others_wait):
            return
        self.quota.close()
        self.placing.enlarge()
        if self.workload is not None and self.workload.may_grow:
            self.growths = grow(self.state, self.policy, self.workload, self.holdings)

    def _begin(self, workload: Workload) -> None:
        """What stands already: what ends, is held and promised, and what each tenant has."""
        self.state.close(workload.closings)
        self.state.expect(mix_of(self.policy.placement.fragmentation, workload.running, self.ordered))
        self.reclaimer = Reclaimer(self.state, self.policy, workload)
        self.backfill = self._rule(self.reclaimer, workload)
        self.reclaimer.hold_standing({job.job_id for job in self.ordered if job.tier in self.policy.tiers})
        self._keep_own(self.reclaimer.promises, workload)
        given_back = {name for name, tier in self.policy.tiers.items() if tier.notice_s is not None}
        firm = (job.job_id for job in self.ordered if job.tier not in given_back)
        self.spares = Spares(self.state, self.policy, workload, self.reclaimer.promises.held_for(firm))
        for attempt in workload.running:
            self.holdings.add(attempt.tenant_id, attempt.tier, len(attempt.gpus))
        for job in self.ordered:
            if job.job_id in self.reclaimer.promises:
                self._comes_to(job, job.fewest_gpus)

    def _keep_own(self, promises: Promises, workload: Workload) -> None:
        waiting = {job.job_id: job for job in self.ordered} if workload.holds else {}
        running = {attempt.job_id for attempt in workload.running} if workload.holds else set()
        for own in workload.holds:
            promises.hold_own(own)
            if own.job_id in waiting:
                self._comes_to(waiting[own.job_id], len(own.gpus))
            elif own.job_id not in running:
                self.holdings.keep(own.tenant_id, own.tier, len(own.gpus))

    def _rule(self, reclaimer: Reclaimer, workload: Workload) -> HeldPlaces:
        if self.policy.queue.backfill == CONSERVATIVE:
            return ConservativeBackfill(self.state, self.policy, reclaimer, workload, self.holdings)
        return EasyBackfill(self.state, self.policy, reclaimer, workload, self.holdings)

    def _is_passed_enough(self, job: WaitingJob) -> bool:
        return is_passed_enough(job, self.policy, len(self.state.layout.uuids))

    def plan(self) -> Plan:
        placements, waiting = tuple(self.placing.placements), tuple(self.waiters.waiting)
        if self.reclaimer is None:
            return Plan(placements, waiting)
        promises = self.reclaimer.promises
        reclaims = tuple(self._reclaims())
        lapses = tuple(promises.lapses)
        withdrawals, growths = tuple(promises.withdrawals), tuple(self.growths)
        return Plan(placements, waiting, reclaims, withdrawals, lapses, growths, tuple(self.waiters.holds))

    def _decide(self, job: WaitingJob) -> Verdict | None:
        """None when the job is placed, else why it waits."""
        promises = None if self.reclaimer is None else self.reclaimer.promises
        if promises is not None and job.job_id in promises:
            return self._tried_by_itself(promises, job)
        own = None if promises is None else promises.lift_own(job.job_id)
        if promises is None or own is None:
            return self._tried(job)
        self.placing.there_is_more()  # for the job itself there is more than there was
        self._comes_to(job, -len(own.gpus))
        verdict = self._tried(job)
        if verdict is not None and any(reason.token is WaitReason.REPLACEMENT for reason in verdict.reasons):
            promises.hold_own(own)  # all of it: what is held beside its good hosts the commit refuses to others
            if not any(reclaim.beneficiary == job.job_id for reclaim in self._reclaims()):
                self._comes_to(job, len(own.gpus))
        elif verdict is not None:
            promises.lapses.append(Lapse(job.job_id, "with what was held for it it cannot go on now"))
        return verdict

    def _tried_by_itself(self, promises: Promises, job: WaitingJob) -> Verdict | None:
        """What its quota keeps for the job that GPUs are reclaimed for is no other's, and does not count against it."""
        self.holdings.keep(job.tenant_id, job.tier, -job.fewest_gpus)
        verdict = self._tried(job)
        if job.job_id in promises:
            self.holdings.keep(job.tenant_id, job.tier, job.fewest_gpus)
        return verdict

    def _comes_to(self, job: WaitingJob, num_gpus: int) -> None:
        """What is held for a job that waits is on its way to its tenant: no other job has it of a quota meanwhile."""
        self.holdings.keep(job.tenant_id, job.tier, num_gpus)
        if self.reclaimer is not None:
            self.reclaimer.lending.comes(job.tenant_id, job.tier, num_gpus)

    def _tried(self, job: WaitingJob) -> Verdict | None:
        if job.tier not in self.policy.tiers:
            return explain.unknown_tier(job.tier)
        limit = self.quota.limit(job)
        within = nodes_of(job, limit)
        over_quota = self.quota.refusal(job, limit)
        if over_quota is not None:
            if self.reclaimer is not None and job.job_id in self.reclaimer.promises:
                self.reclaimer.withdraw(job.job_id, "its tenant has reached its quota")
            return over_quota
        closing_ms = None if self.workload is None else closing_of(self.state, job, self.policy, self.workload.now_ms)
        is_reclaimable = self.policy.tier(job.tier).notice_s is not None
        request = request_of(job, is_reclaimable=is_reclaimable, closing_ms=closing_ms)
        if self.spares is not None and self.spares.may_use(job):
            request = replace(request, may_use_spares=True)
        unforgiving = request.sized(min(job.nodes, within))
        request = self.placing.forgiving(unforgiving) if job.avoid_nodes else unforgiving
        if self.reclaimer is not None and job.job_id in self.reclaimer.promises:
            return self._decide_promised(self.reclaimer, job, request)
        awaited = self._swap_or_wait(job, unforgiving)
        if awaited is not None:
            return awaited
        if self.placing.start(job, request):
            self.waiters.move(() if self.backfill is None else self.backfill.moved())
            return None
        lending = None if self.reclaimer is None else self.reclaimer.lending
        claim = None if lending is None else lending.claim(job.tenant_id, job.tier, job.fewest_gpus)
        told_apart_by = None if self.backfill is None else self.backfill.told_apart_by(job)
        run_s = expected_s(job, self.policy)
        meets = None if self.reclaimer is None else self.reclaimer.told_apart_by(request, claim, run_s)
        tenant = NO_TENANT if claim is None else job.tenant_id
        alike = request, tenant, self._is_beyond(job, claim), told_apart_by, meets
        if alike not in self.verdicts:
            found = self._refused_or_held(job, request, claim)
            if not found.is_of_all:
                return found.verdict
            self.verdicts[alike] = found.verdict
        return self.verdicts[alike]

    def _refused_or_held(self, job: WaitingJob, request: Request, claim: Claim | None) -> "_Found":
        """Reclaim for it, or hold a place for it; else it is as with all jobs of its request."""
        can_ever_fit = could_be(self.state, request)
        self.has_hopeful = self.has_hopeful or can_ever_fit
        through = self._funnel(request)
        booked = None if self.backfill is None else self.backfill.booked(job)
        if booked is not None:  # nobody's giving way would help
            held = self.waiters.hold(job, request, through, booked=booked) if can_ever_fit else None
            return _Found(explain.quota_booked(job, booked, held))
        outcome: Outcome = self._reclaim(job, request.at_least(), claim) if can_ever_fit else Refused()
        if isinstance(outcome, Notified):
            self.waiters.hold_anew()
            return _Found(explain.reclaimed_for_it(request, outcome.until_ms, through))
        if can_ever_fit or (self.backfill is not None and self.backfill.could_be_later(request)):
            refused = outcome if isinstance(outcome, Refused) else None
            held = self.waiters.hold(job, request, through, refused, is_coming=isinstance(outcome, Coming))
            if held is not None and refused is not None and held.is_by_reclaim:
                helped = replace(refused, until_ms=held.until_ms)
                return _Found(explain.no_room(self.state, request, helped, self.policy, through, held=held))
            if held is not None:
                return _Found(explain.held_for_it(request, held, through))
        return self._refused(request, outcome, through)

    def _refused(self, request: Request, outcome: Coming | Refused, through: Funnel) -> "_Found":
        """Of the first that waits for minimum run times, with no place held, it is its own moment that is told."""
        is_first = False
        if isinstance(outcome, Refused) and outcome.obstacle is Obstacle.MIN_RUN:
            is_first, self.awaits_min_run = not self.awaits_min_run, True
            outcome = replace(outcome, is_behind=not is_first)
        passed = None if self.backfill is None else self.backfill.in_the_way(request.at_least())
        verdict = explain.no_room(self.state, request, outcome, self.policy, through, held_until_ms=passed)
        return _Found(verdict, is_of_all=not is_first)

    def _funnel(self, request: Request) -> Funnel:
        if self.reclaimer is not None:
            return funnel(self.state, request, self.reclaimer.promises.mask)
        return funnel(self.state, request, np.zeros(len(self.state.layout.uuids), dtype=np.bool_))

    def _swap_or_wait(self, job: WaitingJob, request: Request) -> Verdict | None:
        """A gang that lost hosts of its required domain keeps the others for a while, where none takes their place."""
        until_ms = wait_until_ms(job, request, self.policy, self.workload)
        if until_ms is None or replan(self.state, request, job.keep) is not None:
            return None
        kept = still_good(self.state, request, job.keep)
        if kept is None:
            return None
        reclaimed = self._replacement_reclaimed(job, request)
        if reclaimed is not None:
            return reclaimed
        through, uuids = self._funnel(request), self.state.layout.uuids
        self.state.take(kept)
        held = Held(job.job_id, tuple(uuids[gpu] for gpu in kept), len(kept), until_ms)
        self.waiters.holds.append(held)
        self.has_hopeful = True
        return explain.awaits_replacement(request, held, through)

    def _replacement_reclaimed(self, job: WaitingJob, request: Request) -> Verdict | None:
        """Hosts in place of those that it lost, at once, where who gives way in its domain makes the swap possible."""
        reclaimer, missing = self.reclaimer, missing_hosts(self.state, request, job.keep)
        may_start = self.backfill is None or self.backfill.booked(job) is None
        if reclaimer is None or missing is None or not may_start or self.num_beneficiaries == MAX_BENEFICIARIES:
            return None
        through, run_s = self._funnel(request), expected_s(job, self.policy)
        claim = reclaimer.lending.claim(job.tenant_id, job.tier, job.fewest_gpus)
        outcome = reclaimer.replace_hosts(job.job_id, request, missing, job.keep, claim, run_s=run_s)
        if not isinstance(outcome, Notified):
            return None
        self._is_reclaimed_for(job)
        self.has_hopeful = True
        self.waiters.hold_anew()
        return explain.replacement_reclaimed(request, len(missing.kept), outcome.until_ms, through)

    def _decide_promised(self, reclaimer: Reclaimer, job: WaitingJob, request: Request) -> Verdict | None:
        """A job that GPUs are being reclaimed for is tried by itself: it alone may take what is held for it."""
        promises, self.has_hopeful = reclaimer.promises, True
        promises.lift(job.job_id)
        least, run_s = request.at_least(), expected_s(job, self.policy)
        last = last_parts(self.state, job, promises, self.workload.now_ms) if self.workload is not None else ()
        is_swap = bool(last) and reclaimer.still_suffices(job.job_id, least, run_s, last=last)
        is_ready = not is_swap or replan(self.state, request, last) is not None
        if is_ready and self.placing.start_promised(job, request):
            reclaimer.withdraw(job.job_id, "the job that it was for has been placed")
            return None
        through = self._funnel(request)
        if not is_swap and not reclaimer.still_suffices(job.job_id, least, run_s):
            reclaimer.withdraw(job.job_id, "it would no longer make room for the job that it was for")
            return explain.planned_anew(request, through)
        missing = missing_hosts(self.state, request, last) if is_swap else None
        promises.hold(job.job_id, promises.held(job.job_id))
        if missing is not None:
            num_kept, deadline_ms = len(missing.kept), promises.deadline_ms(job.job_id)
            return explain.replacement_reclaimed(request, num_kept, deadline_ms, through, stands=True)
        return explain.reclaimed_for_it(request, promises.deadline_ms(job.job_id), through, stands=True)

    def _is_beyond(self, job: WaitingJob, claim: Claim | None) -> bool:
        """It may take nothing back: with it its tenant, or one above that, would hold more than is guaranteed."""
        lending = None if self.reclaimer is None else self.reclaimer.lending
        return claim is None and lending is not None and lending.has_guarantee(job.tenant_id, job.tier)

    def _reclaim(self, job: WaitingJob, request: Request, claim: Claim | None) -> Outcome:
        if self.reclaimer is None or self.num_beneficiaries == MAX_BENEFICIARIES:
            return Refused()
        is_beyond, run_s = self._is_beyond(job, claim), expected_s(job, self.policy)
        outcome = self.reclaimer.choose(job.job_id, request, claim, is_beyond=is_beyond, run_s=run_s)
        if isinstance(outcome, Notified):
            self._is_reclaimed_for(job)
        return outcome

    def _is_reclaimed_for(self, job: WaitingJob) -> None:
        self.num_beneficiaries += 1
        self._comes_to(job, job.fewest_gpus)

    def _reclaims(self) -> Sequence[Reclaim]:
        return () if self.reclaimer is None else self.reclaimer.reclaims
