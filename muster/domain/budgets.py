"""Budgets of tenants: for which time they count, when notice is given, and what follows once they are spent."""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from enum import StrEnum


class BudgetWindow(StrEnum):
    """MONTH: each calendar month in UTC. UNTIL: from its beginning to its end, such as of an experiment."""

    MONTH = "month"
    UNTIL = "until"


class BudgetAction(StrEnum):
    """What follows once a budget is spent. Each one includes notices.

    NO_NEW_JOBS: jobs are refused at their submission. STOP_RECLAIMABLE: these too; jobs in reclaimable tiers are
    stopped with the notice of their tier, and held while they wait. What cannot be reclaimed continues.
    """

    NOTIFY = "notify"
    NO_NEW_JOBS = "no_new_jobs"
    STOP_RECLAIMABLE = "stop_reclaimable"


SPENT = 100
"""The share in per cent at which a budget is spent."""


def month_of(at: datetime) -> tuple[datetime, datetime]:
    """Return the beginning and the end of the calendar month of a time in UTC."""
    start = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    is_last = start.month == 12
    return start, start.replace(year=start.year + is_last, month=1 if is_last else start.month + 1)


def share_of(spent: Decimal, amount: Decimal) -> int:
    """Return the share that is spent, in whole per cent, rounded down. A budget of nothing is spent from the start."""
    return SPENT if amount <= 0 else int(max(spent, Decimal(0)) * 100 / amount)


def share_reached(share: int, shares: Iterable[int]) -> int:
    """Return the highest share with a notice that is reached; 0: none is. A spent budget always has a notice."""
    return max((each for each in {*shares, SPENT} if each <= share), default=0)
