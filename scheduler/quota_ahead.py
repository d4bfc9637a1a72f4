"""When a tenant's quota lets a job start later on (I6): what runs ends, and what is booked holds GPUs too."""

from collections.abc import Sequence
from dataclasses import dataclass

from muster.domain.ids import TenantId
from scheduler.model import WaitingJob
from scheduler.tenancy import Holdings
from scheduler.topology import NEVER_MS


@dataclass(frozen=True, slots=True)
class Holding:
    """``num_gpus`` of a tenant in a tier, from ``start_ms`` to before ``end_ms``."""

    tenant_id: TenantId
    tier: str
    num_gpus: int
    start_ms: int
    end_ms: int


def within_quota_ms(job: WaitingJob, from_ms: int, run_ms: int, holdings: Holdings, held: Sequence[Holding]) -> int:
    """The first moment, ``from_ms`` or later, from which the job may hold its fewest GPUs for so long."""
    limits = [(one.tenant_id, one.most - one.kept) for one in holdings.limits(job.tenant_id, job.tier)]
    if not limits:
        return from_ms
    lines = {one.tenant_id: frozenset(holdings.line(one.tenant_id)) for one in held}
    counted = [
        (most, [one for one in held if one.tier == job.tier and tenant in lines[one.tenant_id]])
        for tenant, most in limits
    ]
    ends = sorted({one.end_ms for _, own in counted for one in own if from_ms < one.end_ms < NEVER_MS})
    for at_ms in [from_ms, *ends]:
        until_ms = NEVER_MS if run_ms == NEVER_MS else at_ms + run_ms
        if all(_most_held(own, at_ms, until_ms) + job.fewest_gpus <= most for most, own in counted):
            return at_ms
    return NEVER_MS


def _most_held(held: Sequence[Holding], at_ms: int, until_ms: int) -> int:
    """At one moment between these; it grows only where something starts."""
    moments = {at_ms, *(one.start_ms for one in held if at_ms < one.start_ms < until_ms)}
    return max(sum(one.num_gpus for one in held if one.start_ms <= at < one.end_ms) for at in moments)
