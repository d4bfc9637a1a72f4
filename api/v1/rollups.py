"""Route of roll-ups: the health and capacity of groups of GPUs, now, as of a time, and over time."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from api.lists import Cursor, ManyAPage, Moment, PageRequest, span_of
from api.permissions import requires
from api.reading import STORABLE
from api.views import time_of
from control.health import rollup_reads
from control.health.rollup_reads import GroupRollup, RollupFilter
from control.telemetry.history import read_moment
from muster import documents
from muster.domain.errors import ValidationFailedError
from muster.domain.gpu.rollup_groups import GroupKind, RoundStep
from muster.domain.principals import Permission, Principal

router = APIRouter(prefix="/health", tags=["fleet"])
A_PAGE = 200


@dataclass(frozen=True, slots=True)
class RollupQuery:
    """The query of roll-ups. With ``since``, ``until`` or ``step`` it is about the past, else about one instant."""

    by: Annotated[GroupKind, Query()]
    group: Annotated[
        list[Annotated[str, Query(min_length=1, max_length=2048, pattern=STORABLE)]] | None,
        Query(max_length=20),
    ] = None
    at: Moment = None
    since: Moment = None
    until: Moment = None
    step: Annotated[RoundStep | None, Query()] = None
    cursor: Cursor = None
    limit: ManyAPage = A_PAGE

    @property
    def wanted(self) -> RollupFilter:
        """The filter. Raises ValidationFailedError: a text is no time, or one instant and a stretch are asked for."""
        keys = sorted(self.group or [])
        at, span = read_moment("at", self.at), span_of(self.since, self.until)
        if self.since is None and self.until is None and self.step is None:
            return RollupFilter(self.by, keys, at)
        if at is not None:
            raise ValidationFailedError.at(
                "at", "invalid", "it asks for one instant; leave it out, or `since`, `until` and `step`"
            )
        return RollupFilter(self.by, keys, span=span, step=self.step or RoundStep.FIVE_MINUTES)

    @property
    def of_cursor(self) -> dict[str, Any]:
        """What a cursor of the list is bound to."""
        times = {"at": self.at, "since": self.since, "until": self.until, "step": self.step}
        return {"path": "rollups", "by": self.by, "groups": sorted(self.group or []), **times}


@router.get("/rollups")
def list_rollups(
    request: Request,
    principal: Annotated[Principal, requires(Permission.JOB_READ)],
    query: Annotated[RollupQuery, Depends()],
) -> documents.RollupPage:
    """Return groups of GPUs with their health and capacity, the worst first.

    They are of the newest round, which is taken every five minutes, or as of ``at``. With ``since``, ``until`` or
    ``step`` the list has all rounds that are kept in that time, the oldest first. A tenant reads its own roll-up alone,
    by tenant; it has one while it has a GPU.
    """
    wanted = query.wanted
    return PageRequest(request, principal, rollup_reads.SORT, query.cursor, query.limit).answer(
        rollup_reads.READ,
        {**query.of_cursor, "who": principal.tenant_id},
        lambda unit, part: rollup_reads.list_rollups(unit, wanted, part),
        rollup_view,
    )


def rollup_view(found: GroupRollup) -> documents.Rollup:
    row = found.rollup
    return {
        "at": time_of(found.taken_at),
        "by": row.kind,
        "key": row.key or None,
        "name": found.name,
        "score": row.score_tenths / 10,
        "worst": row.worst,
        "p10": row.p10,
        "mean": row.mean_tenths / 10,
        "num_nodes": row.num_nodes,
        "num_gpus": row.num_gpus,
        "standings": dict(row.standings),
        "num_healthy": row.num_healthy,
        "num_admitted": row.num_admitted,
        "num_in_use": row.num_in_use,
        "num_reserved": row.num_reserved,
        "num_free": row.num_free,
        "num_out": row.num_out,
    }
