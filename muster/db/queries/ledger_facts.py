"""The facts of the ledger that count a stretch of time: whole days in UTC by days, the rest by hours."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, all_, and_, any_, literal, or_
from sqlalchemy.dialects.postgresql import ARRAY

from muster.db.base import UtcTimestamp
from muster.db.models import LedgerFact

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
"""Whole numbers, as the column has: it has no index by a fraction."""
_LAST: Final = datetime.max.replace(minute=0, second=0, microsecond=0, tzinfo=UTC)


def next_begin(moment: datetime, length: timedelta) -> datetime:
    """Return the beginning of the first hour or day in UTC that begins at the moment or later."""
    begun = _begin_of(moment, length)
    return begun if begun == moment else min(begun, _LAST - length) + length


def facts_within(
    since: datetime, until: datetime, *, by_hour: bool = False, cuts: Collection[datetime] = ()
) -> ColumnElement[bool]:
    """Return the condition on the facts that count the hours from ``since`` to before ``until``, each hour once.

    ``by_hour``: no whole days. ``cuts``: beginnings of hours; a fact is before or after each, so that the days with
    one are counted by hours.
    """
    first, last = next_begin(since, DAY), _begin_of(until, DAY)
    if by_hour or first >= last:
        return _by_hours(since, until)
    days = sorted({_begin_of(cut, DAY) for cut in cuts if cut != _begin_of(cut, DAY) and first <= cut < last})
    hours = [day + number * HOUR for day in days for number in range(DAY // HOUR)]
    begins = LedgerFact.begins_at
    parts = [and_(LedgerFact.span_s == _DAY_S, begins >= first, begins < last)]
    if days:
        parts[0] = and_(parts[0], begins != all_(_moments(days)))
        parts.append(and_(LedgerFact.span_s == _HOUR_S, begins == any_(_moments(hours))))
    # A stretch without an hour is left out: PostgreSQL estimates rows for it, and then reads the whole table.
    parts += [_by_hours(*stretch) for stretch in ((since, first), (last, until)) if stretch[0] < stretch[1]]
    return or_(*parts)


def _by_hours(since: datetime, until: datetime) -> ColumnElement[bool]:
    return and_(LedgerFact.span_s == _HOUR_S, LedgerFact.begins_at >= since, LedgerFact.begins_at < until)


def _moments(moments: Sequence[datetime]) -> ColumnElement[Sequence[datetime]]:
    return literal(moments, ARRAY(UtcTimestamp()))


def _begin_of(moment: datetime, length: timedelta) -> datetime:
    return moment.replace(hour=0 if length == DAY else moment.hour, minute=0, second=0, microsecond=0)
