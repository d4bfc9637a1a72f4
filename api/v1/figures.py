"""Routes of the indicators: their definitions, and their values over time."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request

from api.dependencies import dependencies_of
from api.lists import Moment
from api.permissions import requires
from api.reading import reading
from api.views import time_of
from control.ledger import figures
from control.ledger.figures import Answer, By, FigureStep, Point, Question, Series
from control.telemetry.history import read_moment
from ledger.figures.definitions import Figure, Sum
from ledger.figures.indicators import INDICATORS
from ledger.figures.sketch import Sketch, merged
from muster import documents
from muster.domain.principals import Permission, Principal

router = APIRouter(tags=["figures"])
USUAL: Final = (50.0, 95.0, 99.0)
MOST_PERCENTILES: Final = 10
Percentile = Annotated[float, Query(ge=0, le=100, allow_inf_nan=False)]
Reader = Annotated[Principal, requires(Permission.JOB_READ)]


@router.get("/figures")
def list_figures(principal: Reader) -> documents.FigurePage:
    """Return what each figure means, in the order of the indicators M1 to M15."""
    del principal
    return {"items": [_definition_view(each) for each in INDICATORS.values()], "next_cursor": None}


@router.get("/figures/{name}")
def show_figure(
    name: str,
    request: Request,
    principal: Reader,
    since: Moment = None,
    until: Moment = None,
    step: Annotated[FigureStep, Query()] = FigureStep.HOUR,
    by: Annotated[By, Query()] = By.NONE,
    percentile: Annotated[list[Percentile] | None, Query(max_length=MOST_PERCENTILES)] = None,
) -> documents.Figure:
    """Return a figure over time, by hour or day and by group. A tenant sees its own jobs alone.

    By default the last day by hour, or the last 30 days by day.
    """
    question = Question(name, read_moment("since", since), read_moment("until", until), step, by)
    units = dependencies_of(request).units
    found = reading(units, principal, figures.READ, lambda unit: figures.figures_in(unit, question))
    return _view(found, USUAL if percentile is None else percentile)


def _definition_view(figure: Figure) -> documents.FigureDefinition:
    return {
        "name": figure.name,
        "indicator": figure.indicator,
        "unit": figure.unit,
        "kind": figure.kind,
        "better": figure.better,
        "meaning": figure.meaning,
        "counted_from": figure.counted_from,
        "excluded": figure.excluded,
        "target": figure.target,
        "source": figure.source,
        "parts": [{"name": name, "meaning": words} for name, words in figure.parts.items()],
        "top": list(figure.top),
        "bottom": list(figure.bottom),
        "has_percentiles": bool(figure.spread),
    }


def _view(found: Answer, percentiles: Sequence[float]) -> documents.Figure:
    return {
        "definition": _definition_view(found.figure),
        "since": time_of(found.since),
        "until": time_of(found.until),
        "step": found.step,
        "by": found.by,
        "final_until": time_of(found.final_until),
        "num_left_out": found.num_left_out,
        "series": [_series_view(found.figure, each, percentiles) for each in found.series],
    }


def _series_view(figure: Figure, series: Series, percentiles: Sequence[float]) -> documents.FigureSeries:
    return {
        "group": series.group,
        **_value_view(figure, series.whole, percentiles),
        "points": [
            {"begins_at": time_of(at), **_value_view(figure, point, percentiles)} for at, point in series.points.items()
        ],
    }


def _value_view(figure: Figure, point: Point, percentiles: Sequence[float]) -> documents.FigureValue:
    return {
        "value": point.value,
        "percentiles": _spread(_own_sketch(figure, point.sums), percentiles),
        "parts": [
            {
                "part": part,
                "num": one.num,
                "total": one.total,
                "percentiles": _spread(one.sketch, percentiles),
            }
            for part, one in point.sums.items()
        ],
    }


def _own_sketch(figure: Figure, sums: Mapping[str, Sum]) -> Sketch:
    return merged(sums[part].sketch for part in figure.spread if part in sums)


def _spread(sketch: Sketch, percentiles: Sequence[float]) -> list[documents.FigurePercentile]:
    found = [(each, sketch.percentile(each / 100)) for each in percentiles]
    return [{"percentile": each, "value": value} for each, value in found if value is not None]
