"""Planted bugs in plans: each gives the real planner an input with one fault, or changes its plan.

``simulator.world.planted`` describes them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster.domain.policy.document import Policy
from muster.domain.policy.tiers import TierPolicy
from scheduler.model import Parts, Plan, Question
from scheduler.quota.firm_tiers import is_firm
from scheduler.quota.tenancy import Quota
from scheduler.solve.placement_rule import ANYWHERE
from simulator.world.wiring import plan_of


def ignore_holds(question: Question) -> Plan:
    """Plan with the GPUs that are held for others as free as the rest."""
    holds = tuple(replace(own, gpus=()) for own in question.workload.holds)
    return plan_of(replace(question, workload=replace(question.workload, reclaims=(), holds=holds)))


def ignore_kept(question: Question) -> Plan:
    """Plan with the GPUs that interrupted jobs keep as free; the ones held for another size are not."""
    kept = {job.job_id for job in question.queue if job.interrupted_ms is not None}
    holds = tuple(replace(own, gpus=()) if own.job_id in kept else own for own in question.workload.holds)
    return plan_of(replace(question, workload=replace(question.workload, holds=holds)))


def forget_firm_starts(question: Question) -> Plan:
    """Plan as if no start had been firm."""
    return plan_of(replace(question, queue=[replace(job, firm_start=None) for job in question.queue]))


def count_on_evacuees(question: Question) -> Plan:
    """Plan with the GPUs of evacuated attempts open to any job from their deadline on."""
    now_ms = question.workload.now_ms
    running = tuple(
        replace(one, ends_ms=now_ms) if one.is_stopping and one.ends_ms is None else one
        for one in question.workload.running
    )
    return plan_of(replace(question, workload=replace(question.workload, running=running)))


def never_give_back(question: Question) -> Plan:
    """Plan without the lapses of jobs that cannot continue with the GPUs that they keep."""
    own = {one.job_id for one in question.workload.holds}
    decided = plan_of(question)
    return replace(decided, lapses=tuple(one for one in decided.lapses if one.beneficiary not in own))


def wait_for_ever(question: Question) -> Plan:
    """Plan with gangs that lost a host waiting without end for another of its domain."""
    recovery = question.policy.recovery.model_copy(update={"wait_for_replacement_s": 1e9})
    return plan_of(replace(question, policy=question.policy.model_copy(update={"recovery": recovery})))


def reclaim_from_any_tier(question: Question) -> Plan:
    """Plan with every tier below the beneficiary's reclaimable, even if its rule excludes reclaim."""
    return plan_of(replace(question, policy=_with_tiers(question.policy, notice_s=1.0)))


def ignore_min_run(question: Question) -> Plan:
    return plan_of(replace(question, policy=_with_tiers(question.policy, min_run_s=0.0)))


def ignore_caps(question: Question) -> Plan:
    """Plan without a cap on what a tenant may lose."""
    reclaim = question.policy.reclaim.model_copy(update={"cap_fraction": 1.0})
    policy = question.policy.model_copy(update={"reclaim": reclaim})
    return plan_of(replace(question, policy=policy, workload=replace(question.workload, losses=())))


def ignore_quotas_above(question: Question) -> Plan:
    """Plan with a team's own quota alone, without its department's."""
    tenancy = replace(question.workload.tenancy, members={})
    return plan_of(replace(question, workload=replace(question.workload, tenancy=tenancy)))


def lend_guarantees(question: Question) -> Plan:
    """Plan with guarantees that only order the queue: jobs that no rule takes back borrow them."""
    tenancy, quotas = question.workload.tenancy, {}
    for (tenant, tier), quota in tenancy.quotas.items():
        quotas[tenant, tier] = Quota(ceiling=quota.most) if is_firm(question.policy, tier) else quota
    workload = replace(question.workload, tenancy=replace(tenancy, quotas=quotas))
    return plan_of(replace(question, workload=workload))


def split_domains(question: Question) -> Plan:
    """Plan with required levels as preferred ones."""
    queue = [replace(job, required_level=None, preferred_level=job.required_level) for job in question.queue]
    return plan_of(replace(question, queue=queue))


def split_slices(question: Question) -> Plan:
    return plan_of(replace(question, queue=[replace(job, rule=ANYWHERE) for job in question.queue]))


def spread_over_unknown(question: Question) -> Plan:
    """Plan with evenly spread gangs on hosts of unknown place, too."""
    return plan_of(
        replace(question, queue=[replace(job, rule=replace(job.rule, balance=None)) for job in question.queue])
    )


def mix_cohorts(question: Question) -> Plan:
    return plan_of(replace(question, gpus=[replace(view, cohort_key="any") for view in question.gpus]))


def give_a_gpu_twice(question: Question) -> Plan:
    """Plan, and give the last rank of a host its neighbour's GPU."""

    def doubled(parts: Parts) -> Parts:
        return tuple((node_id, (*part[:-1], part[0])) for node_id, part in parts)

    decided = plan_of(question)
    placements = tuple(replace(one, parts=doubled(one.parts)) for one in decided.placements)
    return replace(decided, placements=placements)


def evict_one_more(question: Question) -> Plan:
    """Plan, and reclaim one more victim than needed."""
    decided = plan_of(question)
    chosen = {one.victim for one in decided.reclaims}
    for attempt in question.workload.running:
        tier = question.policy.tier(attempt.tier)
        held = {gpu for one in decided.reclaims for gpu in one.hold}
        if decided.reclaims and attempt.attempt_id not in chosen and tier.notice_s and not held & set(attempt.gpus):
            first = decided.reclaims[0]
            more = replace(first, victim=attempt.attempt_id, gpus=attempt.gpus, keeps=(), notice_s=tier.notice_s)
            return replace(decided, reclaims=(first, more, *decided.reclaims[1:]))
    return decided


def take_the_first_listed(question: Question) -> Plan:
    """Plan with the queue in the order in which its jobs were read, of which only the first is planned."""
    return plan_of(replace(question, queue=question.queue[:1]))


def _with_tiers(policy: Policy, **changes: Any) -> Policy:
    tiers: Mapping[str, TierPolicy] = {
        name: tier.model_copy(update=changes if name != "reserved" else {}) for name, tier in policy.tiers.items()
    }
    return policy.model_copy(update={"tiers": tiers})
