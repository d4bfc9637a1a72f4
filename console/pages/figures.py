"""Pages of the indicators M1 to M15: all with their newest values, and each one over time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from console.annotations import marks_in
from console.figure_charts import Compared, Row, amount, change, chart_of, compared, csv_of, judged
from console.figure_tables import INDICATORS_TABLE, groups_table
from console.ranges import LONG_RANGES, Range, Shown
from console.rendering import csv_answer, pages_of
from console.session import Viewer, read_at_once, sees
from console.tables import Order, Table, table_named
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
    "judged": judged,
    "ranges": LONG_RANGES,
}


@dataclass(frozen=True, slots=True)
class FigureQuery(Shown):
    """The stretch of time, a week by default, and what groups have in common."""

    range: Annotated[Range, Query()] = Range.WEEK
    by: Annotated[By, Query()] = By.NONE


Week = Annotated[FigureQuery, Depends()]
Ordered = Annotated[Order, Depends()]
Named = Annotated[str, Query(max_length=20)]


def figures_read(request: Request, viewer: Viewer, work: Callable[[UnitOfWork], T]) -> T:
    """Return the result of ``work``, all of whose sums see one state."""
    return read_at_once(request, viewer, figures.READ, work)


@router.get("/figures")
def figures_page(request: Request, viewer: Reader, chosen: Week, order: Ordered) -> Response:
    """List all indicators with their value over the stretch, and how it changed."""
    order.require([INDICATORS_TABLE])
    shown = INDICATORS_TABLE.shown(_every(request, viewer, chosen, is_whole=True), order)
    return pages_of(request).page(
        request, "figures.html", viewer, place="figures", shown=shown, chosen=chosen, **PAGE_CONTEXT
    )


@router.get("/figures.csv")
def figures_csv(request: Request, viewer: Reader, chosen: Week, order: Ordered, table: Named = "points") -> Response:
    """Return the list of indicators as CSV in the order in which it is shown, or each of their points."""
    order.require([INDICATORS_TABLE])
    written = {
        "points": lambda: "".join(csv_of(_every(request, viewer, chosen, is_whole=False))),
        INDICATORS_TABLE.name: lambda: INDICATORS_TABLE.csv(_every(request, viewer, chosen, is_whole=True), order),
    }
    return csv_answer("indicators", table_named(table, written)())


@router.get("/figures/{name}.json")
def figure_chart(name: str, request: Request, viewer: Reader, chosen: Week) -> Response:
    """Return one indicator over time for the page's chart."""
    definition_of(name)

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = chosen.stretch(unit.now)
        found = compared(unit, name, shown, chosen.by, with_before=chosen.compare)
        return {"charts": [chart_of(found, marks_in(unit, shown))]}

    return JSONResponse(figures_read(request, viewer, read))


@router.get("/figures/{name}.csv")
def figure_csv(
    name: str, request: Request, viewer: Reader, chosen: Week, order: Ordered, table: Named = "points"
) -> Response:
    """Return the points of one indicator as CSV, or its groups in the order in which they are shown."""
    groups = _groups(name, chosen, order)
    written = {
        "points": lambda: "".join(csv_of([_one(name, request, viewer, chosen, with_before=chosen.compare)])),
        groups.name: lambda: groups.csv(_one(name, request, viewer, chosen).rows, order),
    }
    return csv_answer(name, table_named(table, written)())


@router.get("/figures/{name}")
def figure_page(name: str, request: Request, viewer: Reader, chosen: Week, order: Ordered) -> Response:
    """Show one indicator: over time, by group, and what it is made of."""
    groups = _groups(name, chosen, order)
    found = _one(name, request, viewer, chosen)
    return pages_of(request).page(
        request,
        "figure.html",
        viewer,
        place="figures",
        found=found,
        groups=groups.shown(found.rows, order),
        chosen=chosen,
        groupings=list(By),
        **PAGE_CONTEXT,
    )


def _every(request: Request, viewer: Viewer, chosen: FigureQuery, *, is_whole: bool) -> list[Compared]:
    def read(unit: UnitOfWork) -> list[Compared]:
        return [compared(unit, name, chosen.stretch(unit.now), is_whole=is_whole) for name in INDICATORS]

    return figures_read(request, viewer, read)


def _one(name: str, request: Request, viewer: Viewer, chosen: FigureQuery, *, with_before: bool = True) -> Compared:
    return figures_read(
        request,
        viewer,
        lambda unit: compared(unit, name, chosen.stretch(unit.now), chosen.by, with_before=with_before),
    )


def _groups(name: str, chosen: FigureQuery, order: Order) -> Table[Row]:
    """Return the table of groups. Raises ``NotFoundError`` or ``ValidationFailedError``: no such figure or column."""
    group = "group" if chosen.by is By.NONE else chosen.by.value
    found = groups_table("groups", group, definition_of(name))
    order.require([found])
    return found
