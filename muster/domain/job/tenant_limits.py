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
    """A tenant's jobs that have not ended, the bytes of their specifications, and what may be submitted at once.

    ``planning_left_s``: the seconds of CPU that its plans and dry runs may take at once; None: all that it may.
    """

    open_jobs: int
    stored_bytes: int
    submissions_left: float
    planning_left_s: float | None = None


@dataclass(frozen=True, slots=True)
class LimitInUse:
    """One limit by its field in ``limits.tenant``, and how much of it is in use."""

    field: str
    used: int
    most: int


def limits_in_use(limits: TenantLimits, use: TenantUse) -> Sequence[LimitInUse]:
    most, most_s = limits.submissions_per_minute, limits.planning_s_per_minute
    left_s = most_s if use.planning_left_s is None else use.planning_left_s
    return (
        LimitInUse("open_jobs", use.open_jobs, limits.open_jobs),
        LimitInUse("stored_bytes", use.stored_bytes, limits.stored_bytes),
        LimitInUse("submissions_per_minute", max(most - math.floor(use.submissions_left), 0), most),
        LimitInUse("planning_s_per_minute", max(most_s - math.floor(left_s), 0), most_s),
    )


def left_at(limits: TenantLimits, left: float, since: datetime, now: datetime) -> float:
    """Return how many may be submitted at ``now``, of ``left`` at ``since``. The limit may have changed meanwhile."""
    return _left_at(limits.submissions_per_minute, left, since, now)


def planning_left_at(limits: TenantLimits, left_s: float, since: datetime, now: datetime) -> float:
    """Return the seconds of CPU that plans may take at ``now``, as ``left_at`` does; below 0 for a debt."""
    return _left_at(limits.planning_s_per_minute, left_s, since, now)


def _left_at(per_minute: int, left: float, since: datetime, now: datetime) -> float:
    passed_s = max((now - since).total_seconds(), 0.0)
    return min(left + passed_s * per_minute / 60, float(per_minute))


def require_planning(limits: TenantLimits, left_s: float) -> None:
    """Check that one more plan may be made. Raise ``TenantLimitError``, which says when."""
    if left_s <= 0:
        most_s = limits.planning_s_per_minute
        found = f"plans and dry runs of the tenant took the {most_s} s of CPU that they may take in a minute"
        raise planning_refusal(found, max(math.ceil(-left_s * 60 / most_s), 1))


def planning_refusal(found: str, wait_s: int) -> TenantLimitError:
    """Return the refusal of a plan or dry run, which may be repeated in ``wait_s``."""
    return _refusal("planning_s_per_minute", "", found, f"Repeat it in {wait_s} s.", wait_s)


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
