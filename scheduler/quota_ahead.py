"""When a tenant's quota lets a job start later on (I6): what runs ends, and what is booked holds GPUs too."""

from collections.abc import Sequence
from dataclasses import dataclass

from muster.domain.ids import TenantId
from scheduler.model import WaitingJob
from scheduler.tenancy import Holdings, Limit
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
    counted = _counted(job, holdings, held)
    ends = sorted({one.end_ms for _, own in counted for one in own if from_ms < one.end_ms < NEVER_MS})
    for at_ms in [from_ms, *ends]:
        until_ms = _until_ms(at_ms, run_ms)
        if all(_most_held(own, at_ms, until_ms) + job.fewest_gpus <= limit.most - limit.kept for limit, own in counted):
            return at_ms
    return NEVER_MS


def tightest(job: WaitingJob, at_ms: int, run_ms: int, holdings: Holdings, held: Sequence[Holding]) -> Limit | None:
    """Of the job's limits the one that leaves it least, from then on for so long."""
    until_ms = _until_ms(at_ms, run_ms)
    counted = _counted(job, holdings, held)
    limits = [limit.leaving(limit.most - limit.kept - _most_held(own, at_ms, until_ms)) for limit, own in counted]
    return min(limits, key=lambda limit: limit.left, default=None)


def _counted(job: WaitingJob, holdings: Holdings, held: Sequence[Holding]) -> list[tuple[Limit, list[Holding]]]:
    """Of each limit what counts for it."""
    limits = holdings.limits(job.tenant_id, job.tier)
    of_tier = [(one, holdings.line(one.tenant_id)) for one in held if one.tier == job.tier] if limits else []
    return [(limit, [one for one, line in of_tier if limit.tenant_id in line]) for limit in limits]


def _until_ms(at_ms: int, run_ms: int) -> int:
    return NEVER_MS if run_ms == NEVER_MS else at_ms + run_ms


def _most_held(held: Sequence[Holding], at_ms: int, until_ms: int) -> int:
    """At one moment between these; it grows only where something starts."""
    moments = {at_ms, *(one.start_ms for one in held if at_ms < one.start_ms < until_ms)}
    return max(sum(one.num_gpus for one in held if one.start_ms <= at < one.end_ms) for at in moments)
