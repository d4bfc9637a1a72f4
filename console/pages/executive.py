"""The executive page: success, money, GPU time, capacity and objectives at one look, next to the period before."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from console.annotations import marks_in
from console.capacity_charts import charts_of
from console.executive import Board, board
from console.executive_tiles import tile_groups
from console.figure_charts import PERCENTILES, amount, change, chart_of, compared
from console.measure_tiles import csv_of_tiles
from console.pages.figures import csv_answer, figures_read
from console.ranges import LONG_RANGES, Range, Shown, Stretch
from console.rendering import pages_of
from console.session import Viewer, sees
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.health.rollup_reads import RollupFilter, list_rollups
from muster.documents.csv_lines import END, line_of
from muster.domain.amounts import gpu_hours
from muster.domain.gpu.rollup_groups import GroupKind
from muster.domain.principals import Permission

router = APIRouter()
Reader = Annotated[Viewer, sees(Permission.METRICS_READ)]


class Table(StrEnum):
    """A table of the page as a file."""

    TILES = "tiles"
    COSTS = "costs"
    CLASSES = "classes"
    OBJECTIVES = "objectives"
    ACCOUNTS = "accounts"


@dataclass(frozen=True, slots=True)
class ExecutiveQuery(Shown):
    """The stretch of time, a month by default."""

    range: Annotated[Range, Query()] = Range.MONTH


Chosen = Annotated[ExecutiveQuery, Depends()]


@router.get("/executive")
def executive_page(request: Request, viewer: Reader, chosen: Chosen) -> Response:
    """Show the tiles and tables of the whole fleet."""
    found = figures_read(request, viewer, lambda unit: board(unit, chosen.stretch(unit.now)))
    return pages_of(request).page(
        request,
        "executive.html",
        viewer,
        place="executive",
        board=found,
        groups=tile_groups(found, chosen),
        chosen=chosen,
        ranges=LONG_RANGES,
        amount=amount,
        change=change,
    )


@router.get("/executive.json")
def executive_charts(request: Request, viewer: Reader, chosen: Chosen) -> Response:
    """Return success, capacity and health over time for the page's charts."""

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = chosen.stretch(unit.now)
        marks = marks_in(unit, shown)
        success = compared(unit, "job_success", shown)
        title = "Job success rate"
        own = chart_of(success, marks, with_before=chosen.compare, title=title)

        def past(of: Stretch) -> Any:
            return list_rollups(unit, RollupFilter(GroupKind.FLEET, [""], span=of.span, step=of.step), Part(None))

        fleet = charts_of(past(shown), shown, marks, past(shown.before) if chosen.compare else None)
        return {"charts": [own, *fleet["charts"]]}

    return JSONResponse(figures_read(request, viewer, read))


@router.get("/executive.csv")
def executive_csv(
    request: Request, viewer: Reader, chosen: Chosen, table: Annotated[Table, Query()] = Table.TILES
) -> Response:
    """Return one table of the page as CSV."""
    found = figures_read(request, viewer, lambda unit: board(unit, chosen.stretch(unit.now)))
    lines = {
        Table.TILES: lambda: csv_of_tiles(tile_groups(found, chosen)),
        Table.COSTS: lambda: _costs(found),
        Table.CLASSES: lambda: _classes(found),
        Table.OBJECTIVES: lambda: _objectives(found),
        Table.ACCOUNTS: lambda: _accounts(found),
    }[table]()
    return csv_answer(f"executive-{table}", "".join(lines))


def _costs(found: Board) -> Iterator[str]:
    currency = "" if found.now.spent.rates is None else found.now.spent.rates.currency
    fields = ("tenant", "department", "gpu_hours", "charged", "charged_before", "currency", "unpriced_gpu_hours")
    yield line_of(fields) + END
    for each in found.tenants:
        before = None if each.before is None else each.before.charged
        own = each.name, each.department, gpu_hours(each.now.num_ms), each.now.charged, before
        yield line_of((*own, currency, gpu_hours(each.now.unpriced_ms))) + END


def _classes(found: Board) -> Iterator[str]:
    yield line_of(("class", "mean_s", *(f"p{each}_s" for each in PERCENTILES), "mean_before_s")) + END
    for row in found.durations.rows:
        yield line_of((row.group, row.value, *row.percentiles, row.before)) + END


def _objectives(found: Board) -> Iterator[str]:
    yield line_of(("class", "objective", "indicator", "target", "window_days", "good", "bad", "left", "state")) + END
    for each in found.objectives:
        own, state = each.objective, each.state
        counted = (None,) * 4 if state is None else (state.num_good, state.num_bad, state.left_fraction, state.state)
        yield line_of((own.job_class, each.name, own.indicator, own.target, own.window_days, *counted)) + END


def _accounts(found: Board) -> Iterator[str]:
    yield line_of(("account", "gpu_hours", "share", "share_before")) + END
    for each in found.accounts:
        yield line_of((each.account, gpu_hours(each.num_ms), each.share, each.before)) + END
