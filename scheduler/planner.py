"""The planner: whole gangs onto admitted, free GPUs of one cohort; reclaim where that is due; a sentence for the rest.

Pure: the same fleet, queue, workload and policy give the same plan (I19). Jobs go by tier priority, then age; a gang
that does not fit is passed by smaller ones behind it. Jobs with equal requests fail together, so a queue of ten
thousand jobs that cannot be placed costs little more than one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from muster.domain.ids import TenantId
from muster.domain.policy import Policy
from scheduler import explain
from scheduler.model import (
    DEFAULT_LEVELS,
    GpuView,
    Lapse,
    Parts,
    Placement,
    Plan,
    Reclaim,
    RunningAttempt,
    StandingReclaim,
    Waiting,
    WaitingJob,
    Withdrawal,
    Workload,
)
from scheduler.reclaim import Notified, Outcome, Reclaimer, Refused
from scheduler.recovery import replan
from scheduler.solver import Chosen, Request, parts_of, place, request_of
from scheduler.topology import FleetState

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
    levels: Sequence[str] = DEFAULT_LEVELS,
) -> Plan:
    """Place what fits, in order; say of each other job why it waits; reclaim and withdraw as the policy has it.

    ``queue`` holds every waiting job that a standing reclaim is for: one that is missing waits no more, and what was
    being reclaimed for it is withdrawn. ``levels`` name the entries of the GPUs' paths, widest first.
    """
    return plan_on(FleetState(gpus, policy, levels), queue, policy, workload)


def plan_on(state: FleetState, queue: Iterable[WaitingJob], policy: Policy, workload: Workload | None = None) -> Plan:
    """As ``plan``, on a state that stands already: afterwards it has taken what was placed and what is held."""
    cycle = _Cycle(state, policy, workload)
    cycle.run(sorted(queue, key=lambda job: (-_priority(policy, job.tier), job.queued_ms, job.job_id)))
    return cycle.plan()


def _priority(policy: Policy, tier: str) -> int:
    return policy.tiers[tier].priority if tier in policy.tiers else -1


@dataclass(slots=True)
class _Cycle:
    state: FleetState
    policy: Policy
    workload: Workload | None
    reclaimer: Reclaimer | None = None
    holdings: Counter[tuple[TenantId, str]] = field(default_factory=Counter)
    unplaceable: set[Request] = field(default_factory=set)
    reasons: dict[Request, str] = field(default_factory=dict)
    placements: list[Placement] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    num_beneficiaries: int = 0

    def run(self, ordered: Sequence[WaitingJob]) -> None:
        if self.workload is not None:
            self.reclaimer = Reclaimer(self.state, self.policy, self.workload)
            self.reclaimer.hold_standing({job.job_id for job in ordered if job.tier in self.policy.tiers})
            for attempt in self.workload.running:
                self.holdings[attempt.tenant_id, attempt.tier] += len(attempt.gpus)
        for job in ordered:
            why = self._decide(job)
            if why is not None:
                self.waiting.append(Waiting(job.job_id, why))

    def plan(self) -> Plan:
        placements, waiting = tuple(self.placements), tuple(self.waiting)
        if self.reclaimer is None:
            return Plan(placements, waiting)
        promises = self.reclaimer.promises
        reclaims = tuple(self.reclaimer.reclaims)
        return Plan(placements, waiting, reclaims, tuple(promises.withdrawals), tuple(promises.lapses))

    def _decide(self, job: WaitingJob) -> str | None:
        """None when the job is placed, else why it waits."""
        if job.tier not in self.policy.tiers:
            return explain.unknown_tier(job.tier)
        over_quota = self._over_quota(job)
        if over_quota is not None:
            if self.reclaimer is not None and job.job_id in self.reclaimer.promises:
                self.reclaimer.withdraw(job.job_id, "its tenant has reached its quota")
            return over_quota
        request = request_of(job, is_reclaimable=self.policy.tier(job.tier).notice_s is not None)
        if self.reclaimer is not None and job.job_id in self.reclaimer.promises:
            return self._decide_promised(self.reclaimer, job, request)
        if self._place(job, request):
            return None
        if request not in self.reasons:
            outcome = self._reclaim(job, request)
            if isinstance(outcome, Notified):
                return explain.reclaimed_for_it(request, outcome.until_ms)
            self.reasons[request] = explain.no_room(self.state, request, outcome, self.policy)
        return self.reasons[request]

    def _over_quota(self, job: WaitingJob) -> str | None:
        """I6, as the commit will ask it again."""
        key = (job.tenant_id, job.tier)
        ceiling = None if self.workload is None else self.workload.ceilings.get(key)
        if ceiling is None or self.holdings[key] + job.num_gpus <= ceiling:
            return None
        return explain.over_quota(job, held=self.holdings[key], ceiling=ceiling)

    def _place(self, job: WaitingJob, request: Request) -> bool:
        chosen: Chosen | None = None
        if job.keep:
            chosen = replan(self.state, request, job.keep)
        if chosen is None and request not in self.unplaceable:
            chosen = place(self.state, request)
        if chosen is None:
            self.unplaceable.add(request)
            return False
        self.state.take(chosen.gpus)
        self.holdings[job.tenant_id, job.tier] += job.num_gpus
        self.placements.append(Placement(job.job_id, job.version, parts_of(self.state.layout, chosen)))
        return True

    def _decide_promised(self, reclaimer: Reclaimer, job: WaitingJob, request: Request) -> str | None:
        """A job that GPUs are being reclaimed for is tried by itself: it alone may take what is held for it."""
        promises = reclaimer.promises
        promises.lift(job.job_id)
        was_unplaceable = request in self.unplaceable
        self.unplaceable.discard(request)
        is_placed = self._place(job, request)
        if was_unplaceable:
            self.unplaceable.add(request)
        if is_placed:
            reclaimer.withdraw(job.job_id, "the job that it was for has been placed")
            return None
        if not reclaimer.still_suffices(job.job_id, request):
            reclaimer.withdraw(job.job_id, "it would no longer make room for the job that it was for")
            return explain.planned_anew(request)
        promises.hold(job.job_id, promises.held(job.job_id))
        return explain.reclaimed_for_it(request, promises.deadline_ms(job.job_id))

    def _reclaim(self, job: WaitingJob, request: Request) -> Outcome:
        if self.reclaimer is None or self.num_beneficiaries == MAX_BENEFICIARIES:
            return Refused()
        outcome = self.reclaimer.choose(job.job_id, request)
        self.num_beneficiaries += isinstance(outcome, Notified)
        return outcome
