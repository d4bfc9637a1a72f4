"""A check of plans, apart from the scheduler's own account: nothing that is firmly guaranteed is lent permanently."""

from collections import Counter
from collections.abc import Mapping
from functools import cache

from health.standing.admission import Refusal, refusal_of
from muster.domain.ids import TenantId
from muster.domain.policy.document import Policy
from scheduler.model import Plan, Question
from scheduler.quota.tenancy import Tenancy

InUse = Counter[tuple[TenantId, str]]


def fault_of_lent(question: Question, decided: Plan) -> str | None:
    """Return how this plan lends what is guaranteed in tiers without notice to jobs that no rule takes back, or None.

    All such tiers are counted together. A plan may use up a guarantee of the tenant that has it, whatever the fleet has
    lost. Beyond that it must leave the unused guarantees of all tenants available.
    """
    policy, tenancy = question.policy, question.workload.tenancy
    firm = {
        tier
        for (_, tier), quota in tenancy.quotas.items()
        if quota.guaranteed and tier in policy.tiers and policy.tiers[tier].notice_s is None
    }
    if not firm:
        return None
    before, comes = _in_use(question), _comes(question, decided, firm)
    after = before + comes
    unused = sum(_unused(tenancy, tier, after) for tier in firm)
    covered = sum(_unused(tenancy, tier, before) for tier in firm) - unused
    available = _available(question, firm) - comes.total()
    if comes.total() > covered and available < unused:
        return f"{unused} GPUs are guaranteed and unused, and {available} are left for them after {dict(comes)}"
    return None


def _in_use(question: Question) -> InUse:
    in_use: InUse = Counter()
    for attempt in question.workload.running:
        in_use[attempt.tenant_id, attempt.tier] += len(attempt.gpus)
    return in_use


def _comes(question: Question, decided: Plan, firm: set[str]) -> InUse:
    """Return the GPUs that the plan gives to jobs which no firm tier takes back."""
    queue = {job.job_id: (job.tenant_id, job.tier) for job in question.queue}
    comes: InUse = Counter()
    for placement in decided.placements:
        comes[queue[placement.job_id]] += sum(len(part) for _, part in placement.parts)
    return Counter({key: number for key, number in comes.items() if not _is_lent_on(question.policy, key[1], firm)})


def _unused(tenancy: Tenancy, tier: str, in_use: Mapping[tuple[TenantId, str], int]) -> int:
    """Return the unused guarantees: of a department no less than its teams' together."""
    concerned = {above for tenant, name in tenancy.quotas if name == tier for above in tenancy.line(tenant)}

    @cache
    def of(tenant: TenantId) -> int:
        has = sum(number for (one, name), number in in_use.items() if name == tier and tenant in tenancy.line(one))
        quota = tenancy.quotas.get((tenant, tier))
        teams = sum(of(team) for team in concerned if tenancy.member(team).parent == tenant)
        return max(0 if quota is None else quota.guaranteed - has, teams)

    return sum(of(tenant) for tenant in concerned if tenancy.member(tenant).parent is None)


def _available(question: Question, firm: set[str]) -> int:
    """Return the GPUs that a firm tier admits, without the GPUs of jobs that none takes back."""
    policy = question.policy
    used = {
        gpu
        for attempt in question.workload.running
        if not _is_lent_on(policy, attempt.tier, firm)
        for gpu in attempt.gpus
    }
    return sum(
        any(refusal_of(view.facts, policy.tier(tier)) in {None, Refusal.ASSIGNED} for tier in firm)
        and view.uuid not in used
        for view in question.gpus
    )


def _is_lent_on(policy: Policy, tier: str, firm: set[str]) -> bool:
    """Return whether a firm tier takes jobs of this one back."""
    rules = policy.tiers.get(tier)
    if rules is None or rules.notice_s is None or not policy.reclaim.cap_fraction:
        return False
    return any(policy.tiers[one].priority > rules.priority for one in firm)
