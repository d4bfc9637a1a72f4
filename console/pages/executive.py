"""The executive page: success, money, GPU time, capacity and objectives at one look, next to the period before."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from console import cost_tables, utilisation_tables
from console.annotations import marks_in
from console.capacity_charts import charts_of
from console.executive import Board, board, tables_of
from console.executive_tiles import tile_groups
from console.figure_charts import change, chart_of, compared
from console.measure_tiles import csv_of_tiles
from console.pages.figures import figures_read
from console.ranges import LONG_RANGES, Range, Shown, Stretch
from console.rendering import csv_answer, pages_of
from console.session import Viewer, sees
from console.tables import Order, Table, table_named
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.health.rollup_reads import RollupFilter, list_rollups
from muster.domain.gpu.rollup_groups import GroupKind
from muster.domain.principals import Permission

router = APIRouter()
Reader = Annotated[Viewer, sees(Permission.METRICS_READ)]


@dataclass(frozen=True, slots=True)
class ExecutiveQuery(Shown):
    """The stretch of time, a month by default."""

    range: Annotated[Range, Query()] = Range.MONTH


Chosen = Annotated[ExecutiveQuery, Depends()]
Ordered = Annotated[Order, Depends()]


@router.get("/executive")
def executive_page(request: Request, viewer: Reader, chosen: Chosen, order: Ordered) -> Response:
    """Show the tiles and tables of the whole fleet."""
    found, tables = _read(request, viewer, chosen, order)
    return pages_of(request).page(
        request,
        "executive.html",
        viewer,
        place="executive",
        currency=found.currency,
        shown={name: table.shown(rows, order) for name, (table, rows) in tables.items()},
        cost_change=cost_tables.change_words,
        time_change=utilisation_tables.change_words,
        groups=tile_groups(found, chosen),
        chosen=chosen,
        ranges=LONG_RANGES,
        change=change,
    )


@router.get("/executive.json")
def executive_charts(request: Request, viewer: Reader, chosen: Chosen) -> Response:
    """Return success, capacity and health over time for the page's charts."""

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = chosen.stretch(unit.now)
        marks = marks_in(unit, shown)
        success = compared(unit, "job_success", shown, with_before=chosen.compare)
        title = "Job success rate"
        own = chart_of(success, marks, title=title)

        def past(of: Stretch) -> Any:
            return list_rollups(unit, RollupFilter(GroupKind.FLEET, [""], span=of.span, step=of.step), Part(None))

        fleet = charts_of(past(shown), shown, marks, past(shown.before) if chosen.compare else None)
        return {"charts": [own, *fleet["charts"]]}

    return JSONResponse(figures_read(request, viewer, read))


@router.get("/executive.csv")
def executive_csv(
    request: Request,
    viewer: Reader,
    chosen: Chosen,
    order: Ordered,
    table: Annotated[str, Query(max_length=20)] = "tiles",
) -> Response:
    """Return one table of the page as CSV, in the order in which it is shown."""
    found, tables = _read(request, viewer, chosen, order)
    written: dict[str, Callable[[], str]] = {"tiles": lambda: "".join(csv_of_tiles(tile_groups(found, chosen)))}
    for name, (own, rows) in tables.items():
        written[name] = functools.partial(own.csv, rows, order)
    return csv_answer(f"executive-{table}", table_named(table, written)())


def _read(
    request: Request, viewer: Viewer, chosen: ExecutiveQuery, order: Order
) -> tuple[Board, dict[str, tuple[Table[Any], Sequence[Any]]]]:
    found = figures_read(request, viewer, lambda unit: board(unit, chosen.stretch(unit.now)))
    tables = tables_of(found)
    order.require([table for table, _ in tables.values()])
    return found, tables
