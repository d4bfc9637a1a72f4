"""Page of capacity: the fleet or one group over time, and all groups of a kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import STORABLE, reading
from console.annotations import marks_in
from console.capacity_charts import charts_of, sparkline
from console.capacity_tables import groups_table
from console.paging import page_of, place_in
from console.ranges import LONG_RANGES, Range, Shown, Stretch
from console.rendering import csv_answer, pages_of
from console.session import Viewer, sees
from console.tables import Order, Table, TablePage, table_named
from control.core.paging import Part, Sort
from control.core.unit_of_work import UnitOfWork
from control.health import rollup_reads
from control.health.rollup_orders import rollup_sort
from control.health.rollup_reads import GroupRollup, RollupFilter, list_rollups, past_scores
from muster.domain.gpu.rollup_groups import GroupKind, RoundStep
from muster.domain.principals import Permission

router = APIRouter()
GpuReader = Annotated[Viewer, sees(Permission.GPU_READ)]


@dataclass(frozen=True, slots=True)
class CapacityQuery(Shown):
    """The group that is drawn, and the stretch of time. ``group``: a key; without it the fleet is drawn."""

    by: Annotated[GroupKind, Query()] = GroupKind.RACK
    group: Annotated[str | None, Query(max_length=2048, pattern=STORABLE)] = None

    @property
    def drawn(self) -> tuple[GroupKind, str]:
        return (GroupKind.FLEET, "") if self.group is None else (self.by, self.group)

    @property
    def period(self) -> str:
        return "Over the chosen dates" if self.is_free else f"Last {self.range.value}"

    def address(self) -> str:
        """Return all parameters but the order."""
        given = [("by", self.by.value), *([] if self.group is None else [("group", self.group)])]
        return f"{urlencode(given)}&{self.query()}"


Chosen = Annotated[CapacityQuery, Depends()]
Ordered = Annotated[Order, Depends()]
Cursor = Annotated[str | None, Query(max_length=4096)]


@router.get("/capacity")
def capacity_page(
    request: Request, viewer: GpuReader, chosen: Chosen, order: Ordered, cursor: Cursor = None
) -> Response:
    """Show one group over time, and the groups of the kind with their score over time, as of the stretch's end."""
    kind, key = chosen.drawn
    table, sort = _table(chosen, order)
    secret_key = dependencies_of(request).secret_key
    filters = {**dict(parse_qsl(chosen.address(), keep_blank_values=True)), "sort": order.sort}
    behind = place_in(secret_key, filters, cursor, length=len(sort.keys))

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = chosen.stretch(unit.now)
        current = list_rollups(unit, RollupFilter(kind, [key], at=shown.until), Part(1))
        groups = list_rollups(unit, RollupFilter(chosen.by, at=shown.until), Part(table.size + 1, behind, sort))
        page = page_of(secret_key, filters, groups, size=table.size, path="/console/capacity", place=sort.position_of)
        return {
            "current": current[0] if current else None,
            "step": shown.step,
            "groups": TablePage(table, table.order_in(order), page.items, len(page.items)),
            "paths": paths_of(unit, page.items, shown),
            "older": page.older,
        }

    found = reading(dependencies_of(request).units, viewer.principal, rollup_reads.READ, read)
    kinds = [each for each in GroupKind if each is not GroupKind.FLEET]
    shown: dict[str, Any] = {"chosen": chosen, "kinds": kinds, "ranges": LONG_RANGES}
    return pages_of(request).page(request, "capacity.html", viewer, place="capacity", **found, **shown)


@router.get("/capacity.csv")
def capacity_csv(
    request: Request,
    viewer: GpuReader,
    chosen: Chosen,
    order: Ordered,
    table: Annotated[str, Query(max_length=20)] = "groups",
) -> Response:
    """Return all groups of the kind as CSV, in the order in which they are shown."""
    groups, sort = _table(chosen, order)
    written = table_named(table, {groups.name: groups})

    def read(unit: UnitOfWork) -> Sequence[GroupRollup]:
        return list_rollups(unit, RollupFilter(chosen.by, at=chosen.stretch(unit.now).until), Part(None, sort=sort))

    found = reading(dependencies_of(request).units, viewer.principal, rollup_reads.READ, read)
    return csv_answer(f"capacity-{chosen.by}", "".join(written.lines(found)))


@router.get("/capacity.json")
def capacity_charts(request: Request, viewer: GpuReader, chosen: Chosen) -> Response:
    """Return the past of one group for the page's charts."""
    kind, key = chosen.drawn

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = chosen.stretch(unit.now)

        def past(of: Stretch) -> Sequence[GroupRollup]:
            return list_rollups(unit, RollupFilter(kind, [key], span=of.span, step=of.step), Part(None))

        earlier = past(shown.before) if chosen.compare else None
        return charts_of(past(shown), shown, marks_in(unit, shown), earlier)

    return JSONResponse(reading(dependencies_of(request).units, viewer.principal, rollup_reads.READ, read))


def paths_of(unit: UnitOfWork, groups: Sequence[GroupRollup], shown: Stretch) -> dict[str, str]:
    """Return the path of the score of each group over time by its key."""
    if not groups:
        return {}
    step = RoundStep.HOUR if shown.length <= Range.DAY.length else RoundStep.DAY
    past = past_scores(unit, groups[0].rollup.kind, [each.rollup.key for each in groups], shown.span, step)
    return {each.rollup.key: _line(each, past[each.rollup.key], shown) for each in groups}


def _table(chosen: CapacityQuery, order: Order) -> tuple[Table[GroupRollup], Sort]:
    """Return the table of groups and its order. Raises ``ValidationFailedError``: it has no such column."""
    table = groups_table(chosen.by, chosen.period)
    order.require([table])
    by = table.order_in(order)
    return table, rollup_sort(chosen.by, by.removeprefix("-"), is_descending=by.startswith("-"))


def _line(newest: GroupRollup, past: list[tuple[datetime, int]], shown: Stretch) -> str:
    """Return the line up to the newest round, which is seldom the first of its hour or day."""
    last = newest.taken_at, newest.rollup.score_tenths
    return sparkline(past if past[-1:] == [last] else [*past, last], shown)
