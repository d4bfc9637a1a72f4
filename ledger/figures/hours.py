"""When the hours of the figures are counted: often while they last, seldom later, and never again once they are closed.

    hour 10:00 to 11:00   10:15, 10:30, 10:45, 11:05, 12:00, 17:00, and at 13:00 of the next day for the last time
    of many attempts      11:05, and at 13:00 of the next day

A host keeps reports for up to a day while it cannot send them, and has two hours to send them. So nothing that belongs
to the hour comes after 26 hours; the last count closes it.
"""

from datetime import datetime, timedelta
from typing import Final

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
CLOSES_AFTER: Final = timedelta(hours=26)
"""From the hour's end: a day in the spool of a host, and two hours in which it uploads."""
_WITHIN: Final = tuple(timedelta(minutes=minutes) for minutes in (15, 30, 45))
_AFTER: Final = (timedelta(minutes=5), timedelta(hours=1), timedelta(hours=6), CLOSES_AFTER)
COUNTED_AT: Final = (*_WITHIN, *(HOUR + each for each in _AFTER))
"""From the hour's beginning."""
COUNTED_SELDOM_AT: Final = (HOUR + _AFTER[0], HOUR + CLOSES_AFTER)
MANY_ATTEMPTS: Final = 1_000
"""With more of them at once, a count reads millions of steps, and takes seconds of the database."""
GPUS_COUNTED_AT: Final = tuple(HOUR + each for each in _AFTER[1:])
"""Samples of GPUs are read when their hour is stored as one piece: before that, reading them costs much more."""


def times_for(num_attempts: int) -> tuple[timedelta, ...]:
    """Return when an hour is counted, from its beginning, while so many attempts are there."""
    return COUNTED_SELDOM_AT if num_attempts > MANY_ATTEMPTS else COUNTED_AT


def hour_of(at: datetime) -> datetime:
    """Return the beginning of the hour of a time in UTC."""
    return at.replace(minute=0, second=0, microsecond=0)


def day_of(at: datetime) -> datetime:
    """Return the beginning of the day of a time in UTC."""
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def is_due(
    hour: datetime, counted_at: datetime | None, now: datetime, times: tuple[timedelta, ...] = COUNTED_AT
) -> bool:
    """Return whether the hour is to be counted (again): one of its times has come since it was last counted."""
    passed = [hour + each for each in times if hour + each <= now]
    return bool(passed) and (counted_at is None or counted_at < passed[-1])


def is_last(hour: datetime, now: datetime) -> bool:
    """Return whether a count at this time closes the hour."""
    return now >= hour + HOUR + CLOSES_AFTER
