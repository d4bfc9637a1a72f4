"""Pages of the indicators M1 to M15: all with their newest values, and each one over time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.annotations import marks_in
from console.figure_charts import PERCENTILES, amount, change, chart_of, compared, csv_of, tone_of
from console.ranges import LONG_RANGES, Range, Shown
from console.rendering import pages_of
from console.session import Viewer, sees
from control.core.unit_of_work import UnitOfWork
from control.ledger import figures
from control.ledger.figures import By, definition_of
from ledger.figures.indicators import INDICATORS
from muster.domain.principals import Permission

router = APIRouter()
T = TypeVar("T")
Reader = Annotated[Viewer, sees(Permission.JOB_READ)]
PAGE_CONTEXT: Final[dict[str, Any]] = {
    "amount": amount,
    "change": change,
    "tone_of": tone_of,
    "ranges": LONG_RANGES,
    "percentiles": PERCENTILES,
}


@dataclass(frozen=True, slots=True)
class FigureQuery(Shown):
    """The stretch of time, a week by default, and what groups have in common."""

    range: Annotated[Range, Query()] = Range.WEEK
    by: Annotated[By, Query()] = By.NONE


Week = Annotated[FigureQuery, Depends()]


def figures_read(request: Request, viewer: Viewer, work: Callable[[UnitOfWork], T]) -> T:
    """Return the result of ``work``, all of whose sums see one state."""
    return reading(dependencies_of(request).units, viewer.principal, figures.READ, work, is_one_snapshot=True)


def csv_answer(name: str, text: str) -> Response:
    """Return a file for spreadsheets. ``name``: without its ending."""
    return Response(
        text,
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}.csv"', "Cache-Control": "no-store"},
    )


@router.get("/figures")
def figures_page(request: Request, viewer: Reader, chosen: Week) -> Response:
    """List all indicators with their value over the stretch, and how it changed."""
    found = figures_read(
        request,
        viewer,
        lambda unit: [compared(unit, name, chosen.stretch(unit.now), is_whole=True) for name in INDICATORS],
    )
    return pages_of(request).page(
        request, "figures.html", viewer, place="figures", found=found, chosen=chosen, **PAGE_CONTEXT
    )


@router.get("/figures.csv")
def figures_csv(request: Request, viewer: Reader, chosen: Week) -> Response:
    """Return the list of indicators with each of their points as CSV."""
    found = figures_read(
        request, viewer, lambda unit: [compared(unit, name, chosen.stretch(unit.now)) for name in INDICATORS]
    )
    return csv_answer("indicators", "".join(csv_of(found, with_before=True)))


@router.get("/figures/{name}.json")
def figure_chart(name: str, request: Request, viewer: Reader, chosen: Week) -> Response:
    """Return one indicator over time for the page's chart."""
    definition_of(name)

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = chosen.stretch(unit.now)
        found = compared(unit, name, shown, chosen.by)
        return {"charts": [chart_of(found, marks_in(unit, shown), with_before=chosen.compare)]}

    return JSONResponse(figures_read(request, viewer, read))


@router.get("/figures/{name}.csv")
def figure_csv(name: str, request: Request, viewer: Reader, chosen: Week) -> Response:
    """Return the numbers of one indicator's page as CSV."""
    definition_of(name)
    found = figures_read(request, viewer, lambda unit: compared(unit, name, chosen.stretch(unit.now), chosen.by))
    return csv_answer(found.figure.name, "".join(csv_of([found], with_before=chosen.compare)))


@router.get("/figures/{name}")
def figure_page(name: str, request: Request, viewer: Reader, chosen: Week) -> Response:
    """Show one indicator: over time, by group, and what it is made of."""
    definition_of(name)
    found = figures_read(request, viewer, lambda unit: compared(unit, name, chosen.stretch(unit.now), chosen.by))
    return pages_of(request).page(
        request, "figure.html", viewer, place="figures", found=found, chosen=chosen, groupings=list(By), **PAGE_CONTEXT
    )
