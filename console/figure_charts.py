"""Indicators on pages: their values over a stretch of time next to the period before, charts, and CSV."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from console.ranges import Stretch
from control.core.unit_of_work import UnitOfWork
from control.ledger.figures import Answer, By, FigureStep, Point, Question, Series, figures_in
from control.ledger.statements import tenant_names
from ledger.figures.definitions import Better, Figure
from ledger.figures.sketch import merged
from muster.documents.csv_lines import END, line_of
from muster.domain.times import to_ms

DRAWN_GROUPS: Final = 6
PERCENTILES: Final = (50, 95, 99)
CSV_FIELDS: Final = ("figure", "unit", "period", "group", "begins_at", "value", *(f"p{each}" for each in PERCENTILES))


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of one group on a page. ``before``: of the period before; None: nothing was counted then."""

    group: str
    value: float | None
    before: float | None
    percentiles: tuple[float | None, ...]
    parts: tuple[tuple[str, int, float], ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure over a stretch of time, and over the period of the same length before it.

    ``before``: None: it was not asked for. ``names``: of tenants, by id, where they are the groups.
    """

    now: Answer
    before: Answer | None
    names: Mapping[str, str]

    @property
    def figure(self) -> Figure:
        return self.now.figure

    @property
    def rows(self) -> list[Row]:
        before = () if self.before is None else self.before.series
        earlier = {each.group: each.whole.value for each in before}
        return [_row(self, each, earlier.get(each.group)) for each in self.now.series]

    @property
    def whole(self) -> Row | None:
        """The row of all, where the figure is not grouped and something was counted."""
        return next(iter(self.rows), None)


def compared(
    unit: UnitOfWork,
    name: str,
    shown: Stretch,
    by: By = By.NONE,
    *,
    is_whole: bool = False,
    with_before: bool = True,
) -> Compared:
    """Return a figure over the stretch and before it. Raises as ``figures_in`` does.

    ``is_whole``: without points, and without percentiles of the time before. ``with_before``: the period before is
    read, too.
    """
    step = FigureStep.HOUR if shown.is_hourly else FigureStep.DAY
    now = figures_in(unit, Question(name, shown.since, shown.until, step, by, is_whole))
    earlier = Question(name, now.since - (now.until - now.since), now.since, step, by, is_whole, not is_whole)
    before = figures_in(unit, earlier) if with_before else None
    every = [*now.series, *(() if before is None else before.series)]
    tenants = {each.group for each in every} if by is By.TENANT else set[str]()
    return Compared(now, before, tenant_names(unit.session, tenants) if tenants else {})


def amount(value: float | None, unit: str) -> str:
    """Return a figure's value with its unit; a share in per cent."""
    if value is None:
        return "–"
    return f"{value:.1%}" if unit == "" else f"{value:,.4g} {unit}" if abs(value) < 10_000 else f"{value:,.0f} {unit}"


def change_of(value: float | None, before: float | None, unit: str) -> float | None:
    """Return the change since the period before: of a share its difference, of any other value a part of that before.

    None: either is unknown, or the one before is 0.
    """
    if value is None or before is None:
        return None
    if unit == "":
        return value - before
    return (value - before) / abs(before) if before else None


def change(value: float | None, before: float | None, unit: str) -> str:
    """Return the change since the period before as text: a share in points, any other in per cent; empty: unknown."""
    if value is None or before is None:
        return ""
    found = change_of(value, before, unit)
    if found is None:
        return "unchanged" if value == 0 else "from 0"
    words = f"{found * 100:+.1f}"
    return "unchanged" if float(words) == 0 else f"{words} points" if unit == "" else f"{words}%"


def judged(value: float, before: float | None, unit: str, better: Better) -> str:
    """Return the change since the period before in one word: better, worse, changed, unchanged; or not comparable."""
    if before is None:
        return "not comparable"
    if change(value, before, unit) == "unchanged":
        return "unchanged"
    if better == "neither":
        return "changed"
    return "better" if (value > before) == (better == "higher") else "worse"


def chart_of(found: Compared, marks: Sequence[dict[str, Any]], *, title: str = "") -> dict[str, Any]:
    """Return what static/charts.js draws: a line for each of the largest groups, and the period before."""
    answer, drawn = found.now, found.now.series[:DRAWN_GROUPS]
    lines: list[dict[str, Any]] = [
        {"name": _name(found, each), "points": _points(found.figure, each)} for each in drawn
    ]
    if found.before is not None:
        kept = {each.group for each in drawn}
        earlier = [each for each in found.before.series if each.group in kept]
        for each in earlier:
            line = {"name": _name(found, each), "points": _points(found.figure, each)}
            lines.append(line_before(line, answer.until - answer.since))
    unit = "%" if found.figure.unit == "" else found.figure.unit
    span = [to_ms(answer.since), to_ms(answer.until)]
    chart = {"title": title or found.figure.name, "unit": unit, "x": "time", "lines": lines, "range": span}
    if unit == "%" and all(0 <= value <= 100 for line in lines for _, value in line["points"]):
        chart["bounds"] = [0, 100]
    return {**chart, "marks": list(marks)}


def line_before(line: dict[str, Any], length: timedelta) -> dict[str, Any]:
    """Return a line of the period before, drawn at the times of the period of that length after it."""
    later_ms = length // timedelta(milliseconds=1)
    points = [[at_ms + later_ms, value] for at_ms, value in line["points"]]
    return {"name": f"{line['name']}, before", "points": points, "is_before": True, "of": line["name"]}


def csv_of(found: Sequence[Compared]) -> Iterator[str]:
    """Yield the lines of what a page shows: each point, and with an empty time the whole."""
    yield line_of(CSV_FIELDS) + END
    for one in found:
        for period, answer in (("now", one.now), ("before", one.before)):
            for series in () if answer is None else answer.series:
                for at, point in [*series.points.items(), (None, series.whole)]:
                    yield line_of(_cells(one.figure, period, series.group, at, point)) + END


def _cells(figure: Figure, period: str, group: str, at: datetime | None, point: Point) -> list[object]:
    begins = "" if at is None else at.isoformat().replace("+00:00", "Z")
    return [figure.name, figure.unit, period, group, begins, point.value, *_percentiles(figure, point)]


def _row(found: Compared, series: Series, before: float | None) -> Row:
    parts = tuple((name, one.num, one.total) for name, one in series.whole.sums.items())
    percentiles = _percentiles(found.figure, series.whole)
    return Row(found.names.get(series.group, series.group), series.whole.value, before, percentiles, parts)


def _percentiles(figure: Figure, point: Point) -> tuple[float | None, ...]:
    own = merged(point.sums[part].sketch for part in figure.spread if part in point.sums)
    return tuple(own.percentile(each / 100) for each in PERCENTILES)


def _name(found: Compared, series: Series) -> str:
    return found.figure.name if found.now.by is By.NONE else found.names.get(series.group, series.group) or "unknown"


def _points(figure: Figure, series: Series) -> list[list[float]]:
    scale = 100 if figure.unit == "" else 1
    known = [(at, point.value) for at, point in series.points.items() if point.value is not None]
    return [[to_ms(at), value * scale] for at, value in known]
