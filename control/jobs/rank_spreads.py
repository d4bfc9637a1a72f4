"""Histograms over the ranks of one attempt: of the steps that are kept, and of each rank's newest figures.

PostgreSQL sorts the values into classes. Their widths are equal, or grow by a factor where a value is far above the
median: else one class would have nearly all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text

from control.core.unit_of_work import UnitOfWork
from control.jobs.rank_figures import EVENLY, RANKS_SAMPLED, AttemptShown, RankFigure, reports_of
from control.jobs.training_views import LEAST_STEP_S, MOST_STEP_S

CLASSES: Final = 24
RANKS_READ: Final = 512
"""Of a wider gang so many ranks' steps are read, chosen evenly: each keeps up to 128 of them."""
_FAR: Final = 4
"""From so many times the median on the classes grow by a factor."""
_WIDEST: Final = 10_000
"""The highest value over the lowest class's end where classes grow by a factor: smaller values are in the lowest."""
STEPS: Final = "steps"


@dataclass(frozen=True, slots=True)
class Class:
    """The values from ``low`` on, up to the next class. ``num_chosen``: of these, of the chosen rank."""

    low: float
    num: int
    num_chosen: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Values in classes, all of them. ``percentiles``: p50, p95 and p99, of all and of the chosen rank."""

    name: str
    num: int
    num_chosen: int
    is_by_factor: bool
    percentiles: Sequence[float]
    percentiles_chosen: Sequence[float] | None
    classes: Sequence[Class]


_CLASSES: Final = f"""
, bounds AS (
    SELECT name, min(value) AS least, max(value) AS high,
        percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY value) AS spread,
        percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY value) FILTER (WHERE is_chosen) AS spread_chosen
    FROM named WHERE value IS NOT NULL GROUP BY name
), scaled AS (
    SELECT *, high > {_FAR} * spread[1] AS by_factor, CASE WHEN high > {_FAR} * spread[1]
        THEN greatest(least, high / {_WIDEST}) ELSE least END AS low
    FROM bounds
), classed AS (
    SELECT name, is_chosen, CASE WHEN high <= low THEN 1
        WHEN by_factor THEN width_bucket(ln(greatest(value, low)), ln(low), ln(high), :classes)
        ELSE width_bucket(value, low, high, :classes) END AS place
    FROM named JOIN scaled USING (name) WHERE value IS NOT NULL
)
SELECT name, low, high, by_factor, spread, spread_chosen, greatest(least(place, :classes), 1) AS own_class, count(*),
    count(*) FILTER (WHERE is_chosen)
FROM classed JOIN scaled USING (name) GROUP BY name, low, high, by_factor, spread, spread_chosen, own_class
"""  # noqa: S608  # words of ours
_STEPS: Final = f"""
WITH {EVENLY}, asked AS (SELECT rank FROM evenly UNION SELECT CAST(:rank AS int) WHERE CAST(:rank AS int) IS NOT NULL
), named AS MATERIALIZED (
    SELECT '{STEPS}' AS name, coalesce(rank.rank = CAST(:rank AS int), false) AS is_chosen,
        (point ->> 2)::float8 AS value
    FROM asked JOIN training_ranks AS rank ON rank.attempt_id = :attempt AND rank.rank = asked.rank
    CROSS JOIN LATERAL jsonb_array_elements(rank.history -> 'points') WITH ORDINALITY AS kept (point, place)
    WHERE kept.place > 1 AND (point ->> 2)::float8 BETWEEN {LEAST_STEP_S} AND {MOST_STEP_S}
)
"""  # noqa: S608  # words of ours


def spread_of_steps(unit: UnitOfWork, attempt: AttemptShown, *, chosen: int | None = None) -> Histogram | None:
    """Return the times of the steps that are kept, without the first of each rank: it compiles. None: there are none.

    Of a gang of more than ``RANKS_READ`` ranks, over so many of them and the chosen one.
    """
    given = {"attempt": attempt.id, "most": RANKS_READ, "rank": chosen, "classes": CLASSES}
    return _histograms(unit, _STEPS + _CLASSES, given).get(STEPS)


def spreads_of_ranks(
    unit: UnitOfWork, attempt: AttemptShown, figures: Sequence[RankFigure]
) -> dict[RankFigure, Histogram]:
    """Return how the newest figures of the ranks are spread, each figure that a rank has reported.

    Of a gang of more than ``RANKS_SAMPLED`` ranks, over so many of them.
    """
    values = ", ".join(f"('{figure.value}', {figure.value})" for figure in figures)
    statement = f"""
    WITH {EVENLY}, part AS ({reports_of(figures, "evenly")}), named AS MATERIALIZED (
        SELECT each.name, false AS is_chosen, each.value
        FROM part CROSS JOIN LATERAL (VALUES {values}) AS each (name, value)
    )"""  # noqa: S608  # words of ours
    given = {**attempt.given, "most": RANKS_SAMPLED, "classes": CLASSES}
    return {RankFigure(name): each for name, each in _histograms(unit, statement + _CLASSES, given).items()}


def _histograms(unit: UnitOfWork, statement: str, given: Mapping[str, Any]) -> dict[str, Histogram]:
    by_name: dict[str, list[Any]] = {}
    for row in unit.session.execute(text(statement), given):
        by_name.setdefault(row[0], []).append(row)
    return {name: _histogram(name, rows) for name, rows in by_name.items()}


def _histogram(name: str, rows: Sequence[Any]) -> Histogram:
    low, high, by_factor, spread, spread_chosen = rows[0][1:6]
    counts = {row[6]: (row[7], row[8]) for row in rows}
    classes = [
        Class(_begin(low, high, place, by_factor=by_factor), *counts.get(place + 1, (0, 0)))
        for place in range(CLASSES if high > low else 1)
    ]
    num, num_chosen = (sum(each[part] for each in counts.values()) for part in (0, 1))
    return Histogram(name, num, num_chosen, by_factor, spread, spread_chosen, classes)


def _begin(low: float, high: float, place: int, *, by_factor: bool) -> float:
    share = place / CLASSES
    return float(low * (high / low) ** share if by_factor else low + (high - low) * share)
