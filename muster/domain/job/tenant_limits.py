"""Whether a tenant may submit one more job, by the limits of the policy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from muster.domain.errors import FieldFault, TenantLimitError
from muster.domain.policy.limits import TenantLimits

ASK_AGAIN_S: Final = 60
"""Seconds until a submission beyond the open jobs or stored bytes is worth repeating: a job may have ended by then."""


@dataclass(frozen=True, slots=True)
class TenantUse:
    """A tenant's jobs that have not ended, the bytes of their specifications, and what may be submitted at once."""

    open_jobs: int
    stored_bytes: int
    submissions_left: float


@dataclass(frozen=True, slots=True)
class LimitInUse:
    """One limit by its field in ``limits.tenant``, and how much of it is in use."""

    field: str
    used: int
    most: int


def limits_in_use(limits: TenantLimits, use: TenantUse) -> Sequence[LimitInUse]:
    most = limits.submissions_per_minute
    return (
        LimitInUse("open_jobs", use.open_jobs, limits.open_jobs),
        LimitInUse("stored_bytes", use.stored_bytes, limits.stored_bytes),
        LimitInUse("submissions_per_minute", max(most - math.floor(use.submissions_left), 0), most),
    )


def left_at(limits: TenantLimits, left: float, since: datetime, now: datetime) -> float:
    """Return how many may be submitted at ``now``, of ``left`` at ``since``. The limit may have changed meanwhile."""
    passed_s = max((now - since).total_seconds(), 0.0)
    return min(left + passed_s * limits.submissions_per_minute / 60, float(limits.submissions_per_minute))


def require_within(limits: TenantLimits, use: TenantUse, num_bytes: int) -> None:
    """Check a job of ``num_bytes``. Raise ``TenantLimitError``, which names the limit and says what to do."""
    if use.submissions_left < 1:
        wait_s = max(math.ceil((1 - use.submissions_left) * 60 / limits.submissions_per_minute), 1)
        most = f"the tenant may submit {limits.submissions_per_minute:,} jobs a minute"
        raise _refusal("submissions_per_minute", "", most, f"Submit again in {wait_s} s.", wait_s)
    if use.open_jobs >= limits.open_jobs:
        found = f"the tenant has {use.open_jobs:,} jobs that have not ended, of at most {limits.open_jobs:,}"
        raise _refusal("open_jobs", "", found, "Wait until jobs have ended, or cancel some.", ASK_AGAIN_S)
    if use.stored_bytes + num_bytes > limits.stored_bytes:
        found = (
            f"the job has {num_bytes:,} bytes; the tenant's jobs that have not ended have {use.stored_bytes:,}, and may"
            f" have {limits.stored_bytes:,} in all"
        )
        advice = "Put long arguments into a file that the hosts can read; wait until jobs have ended, or cancel some."
        raise _refusal("stored_bytes", "/program", found, advice, ASK_AGAIN_S)


def _refusal(field: str, pointer: str, found: str, advice: str, wait_s: int) -> TenantLimitError:
    name = f"limits.tenant.{field}"
    return TenantLimitError(
        f"{found} ({name})",
        suggestion=f"{advice} An operator may raise {name} in the policy.",
        faults=(FieldFault(pointer, field, found),),
        retry_after_s=wait_s,
        limit=name,
    )
