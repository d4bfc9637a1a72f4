"""A check of plans, apart from the scheduler's own account: a firm start moves only for a reason that is true (I31)."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from health.standing.admission import Refusal, refusal_of
from muster.domain.ids import AttemptId, GpuUuid, JobId
from muster.domain.policy.queue import CONSERVATIVE
from scheduler.model import FirmStart, Plan, Postponed, Question, Waiting, WaitingJob
from scheduler.queue.order import expected_s
from scheduler.quota.firm_tiers import is_firm


def fault_of_firm_starts(question: Question, decided: Plan) -> str | None:
    """Return which firm start this plan moves without a reason that is true, or reports once it has passed, or None."""
    served = {one.job_id for one in decided.placements} | {one.beneficiary for one in decided.reclaims}
    served |= {one.beneficiary for one in question.workload.reclaims}
    now, now_ms = {one.job_id: one for one in decided.waiting}, question.workload.now_ms
    for one in decided.waiting:
        if one.firm_start is not None and one.firm_start.latest_ms < now_ms:
            return f"{one.job_id} waits at {now_ms} with a start by {one.firm_start.latest_ms}"
    for job in question.queue:
        if job.firm_start is None or job.job_id not in now:
            continue
        fault = _fault(question, decided, job, job.firm_start, now[job.job_id], is_served=job.job_id in served)
        if fault is not None:
            return f"{job.job_id} was to start by {job.firm_start.latest_ms}, and {fault}"
    return None


def _fault(
    question: Question, decided: Plan, job: WaitingJob, firm_start: FirmStart, entry: Waiting, *, is_served: bool
) -> str | None:
    if entry.firm_start is not None and entry.firm_start.latest_ms <= firm_start.latest_ms:
        return None
    postponed = entry.postponed
    if postponed is None or postponed.latest_ms != firm_start.latest_ms:
        return None if is_served else f"has now {entry.firm_start} without a reason"
    return _fault_of_reason(Place(question, decided, job, firm_start), postponed)


def _fault_of_reason(place: "Place", postponed: Postponed) -> str | None:
    """Return what is wrong with the reason; None: what it states has happened."""
    is_true = next((is_true for words, is_true in _TRUE_IF.items() if words in postponed.why), None)
    if is_true is None:
        return f"no check knows the reason {postponed.why!r}"
    return None if is_true(place) else f"it is not true that {postponed.why}"


@dataclass(frozen=True)
class Place:
    """The place of a firm start, and what has happened to it by the question and the plan."""

    question: Question
    decided: Plan
    job: WaitingJob
    firm_start: FirmStart

    @cached_property
    def gpus(self) -> frozenset[GpuUuid]:
        return frozenset(self.firm_start.gpus)

    @property
    def is_past(self) -> bool:
        return self.question.workload.now_ms > self.firm_start.latest_ms

    def makes_none_firm(self) -> bool:
        return self.question.policy.queue.backfill == CONSERVATIVE

    def is_refused_by_guarantees(self) -> bool:
        """Return whether another tenant has a guarantee in a tier without notice."""
        line = self.question.workload.tenancy.line(self.job.tenant_id)
        quotas = self.question.workload.tenancy.quotas.items()
        return any(
            quota.guaranteed and is_firm(self.question.policy, tier) and (tenant not in line or tier != self.job.tier)
            for (tenant, tier), quota in quotas
        )

    def has_lost_gpus(self) -> bool:
        """Return whether a GPU of the place is out of service, or no longer there."""
        tier = self.question.policy.tier(self.job.tier)
        usable = {view.uuid for view in self.question.gpus if refusal_of(view.facts, tier) in {None, Refusal.ASSIGNED}}
        return not self.gpus <= usable

    def is_closing(self) -> bool:
        """Return whether planned work on one of its hosts begins before the job would end."""
        end_ms = self.firm_start.latest_ms + int(expected_s(self.job, self.question.policy) * 1000)
        nodes = {view.node_id for view in self.question.gpus if view.uuid in self.gpus}
        return any(
            at_ms <= end_ms for node, at_ms in self.question.workload.maintenance_starts.items() if node in nodes
        )

    def is_on_hold_for_another(self) -> bool:
        """Return whether GPUs of the place are held for, or given to, a job that goes before."""
        workload, decided = self.question.workload, self.decided
        taken: list[tuple[JobId, Collection[GpuUuid]]] = [(one.job_id, one.gpus) for one in workload.holds]
        taken += [(standing.beneficiary, standing.hold) for standing in workload.reclaims]
        taken += [(reclaim.beneficiary, reclaim.hold) for reclaim in decided.reclaims]
        if any(job_id != self.job.job_id and not self.gpus.isdisjoint(gpus) for job_id, gpus in taken):
            return True
        kept = [*(one.keeps for one in workload.reclaims), *(one.keeps for one in decided.reclaims)]
        if any(not self.gpus.isdisjoint(gpus) for gpus in kept):  # an elastic victim continues with them
            return True
        places = [(one.job_id, one.gpus) for one in decided.holds]
        return self._is_taken_by_higher_right(places) or self.is_started_on_by_higher_right()

    def is_started_on_by_higher_right(self) -> bool:
        placed = [(one.job_id, [gpu for _, part in one.parts for gpu in part]) for one in self.decided.placements]
        return self._is_taken_by_higher_right(placed)

    def is_overrun(self) -> bool:
        """Return whether a job on the place has no stated end by the latest start, or has outlasted it."""
        latest_ms, now_ms = self.firm_start.latest_ms, self.question.workload.now_ms
        return any(
            self._ends_ms.get(one.attempt_id) is None
            or self._ends_ms[one.attempt_id] > latest_ms
            or self._ends_ms[one.attempt_id] < now_ms
            for one in self.question.workload.running
            if not self.gpus.isdisjoint(one.gpus)
        )

    @cached_property
    def _ends_ms(self) -> Mapping[AttemptId, int]:
        return {one.attempt_id: one.ends_ms for one in self.question.workload.running if one.ends_ms is not None}

    def is_being_cleaned(self) -> bool:
        """Return whether GPUs of the place are in use by no attempt once the latest start has passed."""
        running = {gpu for one in self.question.workload.running for gpu in one.gpus}
        return self.is_past and bool(self.gpus & self._assigned - running)

    def is_kept_as_spare(self) -> bool:
        """Return whether the policy keeps spares, and GPUs of the place are idle or lent to a reclaimable tier."""
        policy = self.question.policy
        if policy.recovery.spares.confidence is None:
            return False
        lent = [one for one in self.question.workload.running if policy.tiers[one.tier].notice_s is not None]
        return bool(self.gpus - self._assigned) or any(not self.gpus.isdisjoint(one.gpus) for one in lent)

    def is_under_quota(self) -> bool:
        tenancy = self.question.workload.tenancy
        return any((above, self.job.tier) in tenancy.quotas for above in tenancy.line(self.job.tenant_id))

    @cached_property
    def _assigned(self) -> frozenset[GpuUuid]:
        return frozenset(view.uuid for view in self.question.gpus if view.facts.is_assigned)

    def _is_taken_by_higher_right(self, taken: Collection[tuple[JobId, Collection[GpuUuid]]]) -> bool:
        queue = {job.job_id: job for job in self.question.queue}
        return any(
            job_id != self.job.job_id and not self.gpus.isdisjoint(gpus) and self._goes_before(queue[job_id])
            for job_id, gpus in taken
        )

    def _goes_before(self, other: WaitingJob) -> bool:
        """Return whether the other may take the place: a higher tier, one that ran, is guaranteed or is as firm."""
        tiers, guaranteed = self.question.policy.tiers, self.question.workload.tenancy.guarantees(other.tier)
        if tiers[other.tier].priority != tiers[self.job.tier].priority:
            return tiers[other.tier].priority > tiers[self.job.tier].priority
        line = self.question.workload.tenancy.line(other.tenant_id)
        is_firm_too = other.firm_start is not None and other.firm_start.latest_ms <= self.firm_start.latest_ms
        return bool(other.keep) or is_firm_too or any(guaranteed.get(above) for above in line)


_TRUE_IF: Final[Mapping[str, Callable[[Place], bool]]] = {
    "the policy makes no start firm any more": Place.makes_none_firm,
    "guarantees of other tenants": Place.is_refused_by_guarantees,
    "may not be used any more": Place.has_lost_gpus,
    "closes for planned work": Place.is_closing,
    "a job that goes before it has got GPUs": Place.is_on_hold_for_another,
    "a job that goes before it, of the tier": Place.is_started_on_by_higher_right,
    "in use for longer than": Place.is_overrun,
    "still being cleaned": Place.is_being_cleaned,
    "kept as spares": Place.is_kept_as_spare,
    "its tenant's quota": Place.is_under_quota,
    "a limit, or the order of the queue": lambda place: place.is_past,
    "it waits for hosts in place of the ones that it lost": lambda place: place.is_past,
    "GPUs that are reclaimed for it": lambda place: place.is_past,
}
"""What has to be so where a reason has these words."""
