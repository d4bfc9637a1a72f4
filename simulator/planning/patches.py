"""Planted bugs in plans: each gives the real planner an input with one fault, or changes its plan.

``simulator.world.planted`` describes them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster.domain.policy.document import Policy, TierPolicy
from scheduler.model import Parts, Plan, Question
from scheduler.solve.placement_rule import ANYWHERE
from simulator.world.wiring import plan_of


def ignore_holds(asked: Question) -> Plan:
    """Plan with the GPUs that are held for others as free as the rest."""
    holds = tuple(replace(own, gpus=()) for own in asked.workload.holds)
    return plan_of(replace(asked, workload=replace(asked.workload, reclaims=(), holds=holds)))


def ignore_kept(asked: Question) -> Plan:
    """Plan with the GPUs that interrupted jobs keep as free; the ones held for another size are not."""
    kept = {job.job_id for job in asked.queue if job.interrupted_ms is not None}
    holds = tuple(replace(own, gpus=()) if own.job_id in kept else own for own in asked.workload.holds)
    return plan_of(replace(asked, workload=replace(asked.workload, holds=holds)))


def count_on_evacuees(asked: Question) -> Plan:
    """Plan with the GPUs of evacuated attempts open to any job from their deadline on."""
    now_ms = asked.workload.now_ms
    running = tuple(
        replace(one, ends_ms=now_ms) if one.is_stopping and one.ends_ms is None else one
        for one in asked.workload.running
    )
    return plan_of(replace(asked, workload=replace(asked.workload, running=running)))


def never_give_back(asked: Question) -> Plan:
    """Plan without the lapses of jobs that cannot continue with the GPUs that they keep."""
    own = {one.job_id for one in asked.workload.holds}
    decided = plan_of(asked)
    return replace(decided, lapses=tuple(one for one in decided.lapses if one.beneficiary not in own))


def wait_for_ever(asked: Question) -> Plan:
    """Plan with gangs that lost a host waiting without end for another of its domain."""
    recovery = asked.policy.recovery.model_copy(update={"wait_for_replacement_s": 1e9})
    return plan_of(replace(asked, policy=asked.policy.model_copy(update={"recovery": recovery})))


def reclaim_from_any_tier(asked: Question) -> Plan:
    """Plan with every tier below the beneficiary's reclaimable, even if its rule excludes reclaim."""
    return plan_of(replace(asked, policy=_with_tiers(asked.policy, notice_s=1.0)))


def ignore_min_run(asked: Question) -> Plan:
    return plan_of(replace(asked, policy=_with_tiers(asked.policy, min_run_s=0.0)))


def ignore_caps(asked: Question) -> Plan:
    """Plan without a cap on what a tenant may lose."""
    reclaim = asked.policy.reclaim.model_copy(update={"cap_fraction": 1.0})
    policy = asked.policy.model_copy(update={"reclaim": reclaim})
    return plan_of(replace(asked, policy=policy, workload=replace(asked.workload, losses=())))


def ignore_quotas_above(asked: Question) -> Plan:
    """Plan with a team's own quota alone, without its department's."""
    tenancy = replace(asked.workload.tenancy, members={})
    return plan_of(replace(asked, workload=replace(asked.workload, tenancy=tenancy)))


def split_domains(asked: Question) -> Plan:
    """Plan with required levels as preferred ones."""
    queue = [replace(job, required_level=None, preferred_level=job.required_level) for job in asked.queue]
    return plan_of(replace(asked, queue=queue))


def split_slices(asked: Question) -> Plan:
    return plan_of(replace(asked, queue=[replace(job, rule=ANYWHERE) for job in asked.queue]))


def spread_over_unknown(asked: Question) -> Plan:
    """Plan with evenly spread gangs on hosts of unknown place, too."""
    return plan_of(replace(asked, queue=[replace(job, rule=replace(job.rule, balance=None)) for job in asked.queue]))


def mix_cohorts(asked: Question) -> Plan:
    return plan_of(replace(asked, gpus=[replace(view, cohort_key="any") for view in asked.gpus]))


def give_a_gpu_twice(asked: Question) -> Plan:
    """Plan, and give the last rank of a host its neighbour's GPU."""

    def doubled(parts: Parts) -> Parts:
        return tuple((node_id, (*part[:-1], part[0])) for node_id, part in parts)

    decided = plan_of(asked)
    placements = tuple(replace(one, parts=doubled(one.parts)) for one in decided.placements)
    return replace(decided, placements=placements)


def evict_one_more(asked: Question) -> Plan:
    """Plan, and reclaim one more victim than needed."""
    decided = plan_of(asked)
    chosen = {one.victim for one in decided.reclaims}
    for attempt in asked.workload.running:
        tier = asked.policy.tier(attempt.tier)
        held = {gpu for one in decided.reclaims for gpu in one.held}
        if decided.reclaims and attempt.attempt_id not in chosen and tier.notice_s and not held & set(attempt.gpus):
            first = decided.reclaims[0]
            more = replace(first, victim=attempt.attempt_id, gpus=attempt.gpus, keeps=(), notice_s=tier.notice_s)
            return replace(decided, reclaims=(first, more, *decided.reclaims[1:]))
    return decided


def take_the_first_told(asked: Question) -> Plan:
    """Plan with the queue in the order in which its jobs were read, of which only the first is planned."""
    return plan_of(replace(asked, queue=asked.queue[:1]))


def _with_tiers(policy: Policy, **changes: Any) -> Policy:
    tiers: Mapping[str, TierPolicy] = {
        name: tier.model_copy(update=changes if name != "reserved" else {}) for name, tier in policy.tiers.items()
    }
    return policy.model_copy(update={"tiers": tiers})
