"""Figures as they are read: by hour or day, over all jobs or by group. A tenant reads its own jobs alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import only_tenant_of
from control.ledger.figure_reads import Accounts, Extent, Store, Stored
from ledger.figures.definitions import Figure, Source, Sum, value_of
from ledger.figures.hours import DAY, HOUR, day_of, hour_of
from ledger.figures.indicators import INDICATORS
from ledger.figures.sketch import merged
from muster.db.models import FigureHour, LedgerHour
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.principals import Permission

READ: Final = declare_action("figures.read")
MOST_POINTS: Final = 1_000
MOST_GROUPS: Final = 100
MOST_POINTS_IN_ALL: Final = 20_000
"""Of all groups together: no more is read, and no answer is larger."""


class FigureStep(StrEnum):
    HOUR = "hour"
    DAY = "day"


class By(StrEnum):
    NONE = "none"
    TENANT = "tenant"
    TIER = "tier"
    CLASS = "class"
    SITE = "site"


DEFAULT_SPAN: Final = {FigureStep.HOUR: timedelta(days=1), FigureStep.DAY: timedelta(days=30)}
_LENGTH: Final = {FigureStep.HOUR: HOUR, FigureStep.DAY: DAY}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a figure. ``since``, ``until``: None: the newest hours or days.

    ``is_whole``: one sum over the whole time, which is faster; figures of the ledger still have their points.
    ``has_percentiles``: also read the sketches.
    """

    name: str
    since: datetime | None = None
    until: datetime | None = None
    step: FigureStep = FigureStep.HOUR
    by: By = By.NONE
    is_whole: bool = False
    has_percentiles: bool = True


@dataclass(frozen=True, slots=True)
class Point:
    """A figure over some time: its value, and the sum of each part that was counted."""

    value: float | None
    sums: Mapping[str, Sum]


@dataclass(slots=True)
class Series:
    """A figure of one group over time: ``whole``, and a point for each step in which something was counted."""

    group: str
    whole: Point
    points: dict[datetime, Point] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """``final_until``: hours before it do not change any more; None: it is not known. ``num_left_out``: groups with
    fewer observations that are left out.
    """

    figure: Figure
    since: datetime
    until: datetime
    step: FigureStep
    by: By
    series: Sequence[Series]
    final_until: datetime | None
    num_left_out: int = 0


def definition_of(name: str) -> Figure:
    """Return a figure's definition. Raises ``NotFoundError``."""
    figure = INDICATORS.get(name)
    if figure is None:
        raise NotFoundError
    return figure


def figures_in(unit: UnitOfWork, question: Question) -> Answer:
    """Return a figure over time. Times are rounded outwards to whole hours or days.

    Raises:
        NotFoundError: no such figure.
        ValidationFailedError: the time is no span, or too long.
    """
    unit.principal.require(Permission.JOB_READ)
    figure = definition_of(question.name)
    since, until = _span(question, unit.now)
    tenant_id = only_tenant_of(unit.principal)
    facts = Accounts(unit.session, figure) if figure.source is Source.LEDGER else Store(unit.session, figure)
    extent = Extent(
        since,
        until,
        question.step,
        question.by,
        tenant_id,
        is_whole=question.is_whole,
        has_percentiles=question.has_percentiles,
    )
    num_left_out = 0
    if question.by is not By.NONE:
        kept, num_groups = facts.groups(extent, _most_groups(figure, extent))
        extent, num_left_out = replace(extent, groups=kept), num_groups - len(kept)
    series = sorted(_series(figure, facts.read(extent)), key=lambda one: (-_weight(one), one.group))
    return Answer(figure, since, until, question.step, question.by, series, _final_until(unit, figure), num_left_out)


def _most_groups(figure: Figure, extent: Extent) -> int:
    has_one = extent.is_whole and figure.source is not Source.LEDGER
    num_points = 1 if has_one else (extent.until - extent.since) // _LENGTH[FigureStep(extent.step)]
    return min(MOST_GROUPS, MOST_POINTS_IN_ALL // num_points)


def _span(question: Question, now: datetime) -> tuple[datetime, datetime]:
    length, begin_of = _LENGTH[question.step], day_of if question.step is FigureStep.DAY else hour_of
    until = now if question.until is None else question.until
    since = until - DEFAULT_SPAN[question.step] if question.since is None else question.since
    if since >= until:
        raise ValidationFailedError.at("since", "no_span", "`since` must lie before `until`")
    first, last = begin_of(since), begin_of(until)
    last = last if last == until else last + length
    if (last - first) / length > MOST_POINTS:
        longest = f"at most {MOST_POINTS} {question.step}s"
        raise ValidationFailedError.at("since", "too_long", f"{longest}; ask for a shorter time, or a step of a day")
    return first, last


def _series(figure: Figure, found: Iterable[Stored]) -> list[Series]:
    sums: dict[str, dict[datetime, dict[str, Sum]]] = {}
    for row in found:
        sums.setdefault(row.group, {}).setdefault(row.begins_at, {})[row.part] = row.sum
    return [
        Series(
            group,
            _point(figure, _added(points.values())),
            {at: _point(figure, points[at]) for at in sorted(points)},
        )
        for group, points in sums.items()
    ]


def _point(figure: Figure, sums: Mapping[str, Sum]) -> Point:
    return Point(value_of(figure, sums), {part: sums[part] for part in figure.parts if part in sums})


def _added(several: Iterable[Mapping[str, Sum]]) -> Mapping[str, Sum]:
    parts: dict[str, list[Sum]] = {}
    for sums in several:
        for part, one in sums.items():
            parts.setdefault(part, []).append(one)
    return {
        part: Sum(sum(one.num for one in ones), sum(one.total for one in ones), merged(one.sketch for one in ones))
        for part, ones in parts.items()
    }


def _weight(series: Series) -> float:
    return sum(one.num or one.total for one in series.whole.sums.values())


def _final_until(unit: UnitOfWork, figure: Figure) -> datetime | None:
    """Return the beginning of the first hour that may change yet; None before any hour was counted."""
    if figure.source is Source.LEDGER:
        # A host without contact keeps one hour open while later ones are closed.
        is_open = unit.session.scalar(select(func.min(LedgerHour.hour)).where(LedgerHour.closed_at.is_(None)))
        newest = unit.session.scalar(select(func.max(LedgerHour.hour)))
        return is_open or (None if newest is None else newest + HOUR)
    hours = select(func.min(FigureHour.hour)).where(FigureHour.source == figure.source, FigureHour.closed_at.is_(None))
    return unit.session.scalar(hours)
