"""Page of capacity: the fleet or one group over time, and all groups of a kind, the worst first."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import STORABLE, reading
from console.capacity_charts import Range, charts_of, sparkline
from console.rendering import pages_of
from console.session import Viewer, sees
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.health import rollup_reads
from control.health.rollup_reads import GroupRollup, RollupFilter, list_rollups, past_scores
from muster.domain.gpu.rollup_groups import GroupKind, RoundStep
from muster.domain.principals import Permission

router = APIRouter()
SHOWN: Final = 100
WORST_SHOWN: Final = 6
GpuReader = Annotated[Viewer, sees(Permission.GPU_READ)]


@dataclass(frozen=True, slots=True)
class CapacityQuery:
    """The group that is drawn, and the stretch of time. ``group``: a key; without it the fleet is drawn."""

    by: Annotated[GroupKind, Query()] = GroupKind.RACK
    group: Annotated[str | None, Query(max_length=2048, pattern=STORABLE)] = None
    range: Annotated[Range, Query()] = Range.DAY

    @property
    def drawn(self) -> tuple[GroupKind, str]:
        return (GroupKind.FLEET, "") if self.group is None else (self.by, self.group)


Chosen = Annotated[CapacityQuery, Depends()]


@router.get("/capacity")
def capacity_page(request: Request, viewer: GpuReader, chosen: Chosen) -> Response:
    """Show one group over time, and the groups of the kind with their score over time."""
    kind, key = chosen.drawn

    def read(unit: UnitOfWork) -> dict[str, Any]:
        current = list_rollups(unit, RollupFilter(kind, [key]), Part(1))
        return {"current": current[0] if current else None, **groups_in(unit, chosen.by, chosen.range, SHOWN)}

    found = reading(dependencies_of(request).units, viewer.principal, rollup_reads.READ, read)
    kinds = [each for each in GroupKind if each is not GroupKind.FLEET]
    shown: dict[str, Any] = {"chosen": chosen, "kinds": kinds, "ranges": list(Range), "most": SHOWN}
    return pages_of(request).page(request, "capacity.html", viewer, place="capacity", **found, **shown)


@router.get("/capacity.json")
def capacity_charts(request: Request, viewer: GpuReader, chosen: Chosen) -> Response:
    """Return the past of one group for the page's charts."""
    kind, key = chosen.drawn

    def read(unit: UnitOfWork) -> dict[str, Any]:
        wanted = RollupFilter(kind, [key], span=chosen.range.span(unit.now), step=chosen.range.step)
        return charts_of(list_rollups(unit, wanted, Part(None)), chosen.range, unit.now)

    return JSONResponse(reading(dependencies_of(request).units, viewer.principal, rollup_reads.READ, read))


def groups_in(unit: UnitOfWork, kind: GroupKind, shown: Range, limit: int) -> dict[str, Any]:
    """Return ``groups``, the worst first, each with the path of its score over time, and whether there are more."""
    found = list_rollups(unit, RollupFilter(kind), Part(limit + 1))
    keys = [each.rollup.key for each in found[:limit]]
    step = RoundStep.HOUR if shown is Range.DAY else RoundStep.DAY
    past = past_scores(unit, kind, keys, shown.span(unit.now), step)
    groups = [(each, _line(each, past[each.rollup.key], shown, unit)) for each in found[:limit]]
    return {"groups": groups, "has_more_groups": len(found) > limit}


def _line(newest: GroupRollup, past: list[tuple[datetime, int]], shown: Range, unit: UnitOfWork) -> str:
    """Return the line up to the newest round, which is seldom the first of its hour or day."""
    last = newest.taken_at, newest.rollup.score_tenths
    return sparkline(past if past[-1:] == [last] else [*past, last], shown, unit.now)
