"""Page of capacity: the fleet or one group over time, and all groups of a kind, the worst first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import STORABLE, reading
from console.annotations import marks_in
from console.capacity_charts import charts_of, sparkline
from console.ranges import LONG_RANGES, Range, Shown, Stretch
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
class CapacityQuery(Shown):
    """The group that is drawn, and the stretch of time. ``group``: a key; without it the fleet is drawn."""

    by: Annotated[GroupKind, Query()] = GroupKind.RACK
    group: Annotated[str | None, Query(max_length=2048, pattern=STORABLE)] = None

    @property
    def drawn(self) -> tuple[GroupKind, str]:
        return (GroupKind.FLEET, "") if self.group is None else (self.by, self.group)


Chosen = Annotated[CapacityQuery, Depends()]


@router.get("/capacity")
def capacity_page(request: Request, viewer: GpuReader, chosen: Chosen) -> Response:
    """Show one group over time, and the groups of the kind with their score over time."""
    kind, key = chosen.drawn

    def read(unit: UnitOfWork) -> dict[str, Any]:
        step = chosen.stretch(unit.now).step
        current = list_rollups(unit, RollupFilter(kind, [key]), Part(1))
        groups = groups_in(unit, chosen.by, chosen.range, SHOWN)
        return {"current": current[0] if current else None, "step": step, **groups}

    found = reading(dependencies_of(request).units, viewer.principal, rollup_reads.READ, read)
    kinds = [each for each in GroupKind if each is not GroupKind.FLEET]
    shown: dict[str, Any] = {"chosen": chosen, "kinds": kinds, "ranges": LONG_RANGES, "most": SHOWN}
    return pages_of(request).page(request, "capacity.html", viewer, place="capacity", **found, **shown)


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


def groups_in(unit: UnitOfWork, kind: GroupKind, shown: Range, limit: int) -> dict[str, Any]:
    """Return ``groups``, the worst first, each with the path of its score over time, and whether there are more."""
    found = list_rollups(unit, RollupFilter(kind), Part(limit + 1))
    keys = [each.rollup.key for each in found[:limit]]
    step = RoundStep.HOUR if shown.length <= Range.DAY.length else RoundStep.DAY
    stretch = Stretch(unit.now - shown.length, unit.now)
    past = past_scores(unit, kind, keys, stretch.span, step)
    groups = [(each, _line(each, past[each.rollup.key], stretch)) for each in found[:limit]]
    return {"groups": groups, "has_more_groups": len(found) > limit}


def _line(newest: GroupRollup, past: list[tuple[datetime, int]], shown: Stretch) -> str:
    """Return the line up to the newest round, which is seldom the first of its hour or day."""
    last = newest.taken_at, newest.rollup.score_tenths
    return sparkline(past if past[-1:] == [last] else [*past, last], shown)
