"""The stretch of time that a page shows: a usual one up to now, or between two dates; and the period before it."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import Query

from control.core.paging import Span
from control.telemetry.history import read_moment
from muster.domain.errors import ValidationFailedError
from muster.domain.gpu.rollup_groups import RoundStep

LONGEST: Final = timedelta(days=400)
_HOURLY: Final = timedelta(days=8)
_DAILY_ROUNDS: Final = timedelta(days=40)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
Given = Annotated[str | None, Query(max_length=40)]


class Range(StrEnum):
    """The stretch of time that a page shows, up to now."""

    HOUR = "1h"
    SIX_HOURS = "6h"
    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"
    YEAR = "1y"

    @property
    def length(self) -> timedelta:
        if self in {Range.HOUR, Range.SIX_HOURS}:
            return timedelta(hours=1 if self is Range.HOUR else 6)
        return timedelta(days={Range.DAY: 1, Range.WEEK: 7, Range.MONTH: 30, Range.YEAR: 365}[self])


LONG_RANGES: Final = (Range.DAY, Range.WEEK, Range.MONTH, Range.YEAR)
"""What a page about history offers."""
RECENT_RANGES: Final = (Range.HOUR, Range.SIX_HOURS, Range.DAY, Range.WEEK, Range.MONTH)
"""What a page about failures offers."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time. ``step``: the finest step of the rounds that are drawn, some hundred points at most."""

    since: datetime
    until: datetime

    @property
    def length(self) -> timedelta:
        return self.until - self.since

    @property
    def span(self) -> Span:
        return Span(self.since, self.until)

    @property
    def before(self) -> "Stretch":
        """The period of the same length that ends where this one begins."""
        return Stretch(self.since - self.length, self.since)

    @property
    def is_hourly(self) -> bool:
        """Whether figures are shown by hour; a longer stretch is shown by day."""
        return self.length <= _HOURLY

    @property
    def step(self) -> RoundStep:
        if self.length <= timedelta(days=1):
            return RoundStep.FIVE_MINUTES
        return RoundStep.HOUR if self.length <= _DAILY_ROUNDS else RoundStep.DAY


@dataclass(frozen=True, slots=True)
class Shown:
    """The parameters of a page over time: a usual stretch, or dates in its place.

    ``since``, ``until``: a date, or a time with its zone; the day of ``until`` is in it. ``compare``: the period before
    is drawn as well.
    """

    range: Annotated[Range, Query()] = Range.DAY
    since: Given = None
    until: Given = None
    compare: Annotated[bool, Query()] = False

    @property
    def is_free(self) -> bool:
        """Whether dates stand in place of a usual stretch."""
        return bool(self.since or self.until)

    def stretch(self, now: datetime) -> Stretch:
        """Return the stretch, at the latest up to now. Raises ``ValidationFailedError``: the dates make none."""
        until = min(_moment("until", self.until, days=1) or now, now)
        since = _moment("since", self.since) or until - self.range.length
        if since >= until:
            raise ValidationFailedError.at("since", "no_span", "`since` must lie before `until` and before now")
        if until - since > LONGEST:
            raise ValidationFailedError.at("since", "too_long", f"at most {LONGEST.days} days may be shown")
        return Stretch(since, until)

    def query(self, *, compare: bool | None = None) -> str:
        """Return the stretch as parameters of an address. ``compare``: in place of its own."""
        given = {"since": self.since, "until": self.until} if self.is_free else {"range": self.range.value}
        is_compared = self.compare if compare is None else compare
        known = {**given, "compare": "true" if is_compared else None}
        return urlencode({name: value for name, value in known.items() if value})

    def of_command(self) -> list[tuple[str, str | None]]:
        """Return the stretch as options of a command."""
        if self.is_free:
            return [("--since", self.since), ("--until", self.until)]
        return [("--since", "365d" if self.range is Range.YEAR else self.range.value)]


def _moment(name: str, text: str | None, days: int = 0) -> datetime | None:
    """Return the beginning of a date, ``days`` later, or a time as it is."""
    if not text:
        return None
    if _DATE.fullmatch(text) is None:
        return read_moment(name, text)
    try:
        found = datetime.fromisoformat(text).replace(tzinfo=UTC) + timedelta(days=days)
    except (ValueError, OverflowError):
        found = None
    if found is None or not 2000 <= found.year <= 9000:  # the years that a page can compute with
        raise ValidationFailedError.at(name, "no_date", "must be a date of the calendar, such as 2026-11-21")
    return found
