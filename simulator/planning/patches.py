"""Planted bugs of the planner's kind: each asks the real planner a question with one thing wrong, or bends its word.

``simulator.world.planted`` tells of them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster.domain.policy.document import Policy, TierPolicy
from scheduler.model import Parts, Plan, Question
from scheduler.solve.placement_rule import ANYWHERE
from simulator.world.wiring import plan_of


def ignore_holds(asked: Question) -> Plan:
    """What is held for others is as free as the rest."""
    holds = tuple(replace(own, gpus=()) for own in asked.workload.holds)
    return plan_of(replace(asked, workload=replace(asked.workload, reclaims=(), holds=holds)))


def ignore_kept(asked: Question) -> Plan:
    """What is kept for who was interrupted is as free as the rest; what is held for another size is not."""
    kept = {job.job_id for job in asked.queue if job.interrupted_ms is not None}
    holds = tuple(replace(own, gpus=()) if own.job_id in kept else own for own in asked.workload.holds)
    return plan_of(replace(asked, workload=replace(asked.workload, holds=holds)))


def count_on_evacuees(asked: Question) -> Plan:
    """What leaves by an evacuation's deadline is anybody's from then on."""
    now_ms = asked.workload.now_ms
    running = tuple(
        replace(one, ends_ms=now_ms) if one.is_stopping and one.ends_ms is None else one
        for one in asked.workload.running
    )
    return plan_of(replace(asked, workload=replace(asked.workload, running=running)))


def never_give_back(asked: Question) -> Plan:
    """Who cannot go on with what it keeps keeps it all the same."""
    own = {one.job_id for one in asked.workload.holds}
    decided = plan_of(asked)
    return replace(decided, lapses=tuple(one for one in decided.lapses if one.beneficiary not in own))


def wait_for_ever(asked: Question) -> Plan:
    """A gang that lost a host waits for another of its domain, however long none comes."""
    recovery = asked.policy.recovery.model_copy(update={"wait_for_replacement_s": 1e9})
    return plan_of(replace(asked, policy=asked.policy.model_copy(update={"recovery": recovery})))


def reclaim_from_any_tier(asked: Question) -> Plan:
    """Every tier below the beneficiary's gives, whatever was promised to it."""
    return plan_of(replace(asked, policy=_with_tiers(asked.policy, notice_s=1.0)))


def ignore_min_run(asked: Question) -> Plan:
    return plan_of(replace(asked, policy=_with_tiers(asked.policy, min_run_s=0.0)))


def ignore_caps(asked: Question) -> Plan:
    """A tenant may lose whatever it has."""
    reclaim = asked.policy.reclaim.model_copy(update={"cap_fraction": 1.0})
    policy = asked.policy.model_copy(update={"reclaim": reclaim})
    return plan_of(replace(asked, policy=policy, workload=replace(asked.workload, losses=())))


def ignore_quotas_above(asked: Question) -> Plan:
    """A team's own quota counts, its department's does not."""
    tenancy = replace(asked.workload.tenancy, members={})
    return plan_of(replace(asked, workload=replace(asked.workload, tenancy=tenancy)))


def split_domains(asked: Question) -> Plan:
    """A required level is a wish."""
    queue = [replace(job, required_level=None, preferred_level=job.required_level) for job in asked.queue]
    return plan_of(replace(asked, queue=queue))


def split_slices(asked: Question) -> Plan:
    return plan_of(replace(asked, queue=[replace(job, rule=ANYWHERE) for job in asked.queue]))


def spread_over_unknown(asked: Question) -> Plan:
    """A gang that is spread evenly may have hosts of which nobody knows where they stand."""
    return plan_of(replace(asked, queue=[replace(job, rule=replace(job.rule, balance=None)) for job in asked.queue]))


def mix_cohorts(asked: Question) -> Plan:
    return plan_of(replace(asked, gpus=[replace(view, cohort_key="any") for view in asked.gpus]))


def give_a_gpu_twice(asked: Question) -> Plan:
    """The last rank of a host shares its neighbour's GPU."""

    def doubled(parts: Parts) -> Parts:
        return tuple((node_id, (*part[:-1], part[0])) for node_id, part in parts)

    decided = plan_of(asked)
    placements = tuple(replace(one, parts=doubled(one.parts)) for one in decided.placements)
    return replace(decided, placements=placements)


def evict_one_more(asked: Question) -> Plan:
    """One more victim than is needed, to be sure."""
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
    """The queue's order is that in which its jobs were read."""
    return plan_of(replace(asked, queue=asked.queue[:1]))


def _with_tiers(policy: Policy, **changes: Any) -> Policy:
    tiers: Mapping[str, TierPolicy] = {
        name: tier.model_copy(update=changes if name != "reserved" else {}) for name, tier in policy.tiers.items()
    }
    return policy.model_copy(update={"tiers": tiers})
