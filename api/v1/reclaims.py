"""Routes of reclaims: each with its victim, beneficiary, deadline, and the outcome for the victim's work."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import PRINTABLE, Limit, page_of, reading, require_id
from api.views import reclaim_view
from control.reclaim import read
from control.reclaim.read import ReclaimView
from muster import documents
from muster.domain.ids import JobId, ReclaimId
from muster.domain.principals import Permission, Principal
from muster.domain.states import ReclaimState

router = APIRouter(tags=["reclaims"])


@router.get("/reclaims")
def list_reclaims(
    request: Request,
    principal: Annotated[Principal, requires(Permission.JOB_READ)],
    state: Annotated[list[ReclaimState] | None, Query(max_length=5)] = None,
    job_id: Annotated[
        str | None, Query(max_length=64, pattern=PRINTABLE, description="the victim's job or the beneficiary")
    ] = None,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Limit = 50,
) -> documents.ReclaimPage:
    """Return reclaims, the newest first; ``next_cursor`` is null on the last page. A tenant sees its own side alone."""
    dependencies = dependencies_of(request)
    states = sorted(state or [])
    filters = {"states": states, "job_id": job_id, "who": principal.tenant_id}
    before = None
    if cursor is not None:
        moment, reclaim_id = read_cursor(dependencies.secret_key, filters, cursor, length=2)
        before = (datetime.fromisoformat(moment), reclaim_id)
    found = reading(
        dependencies.units,
        principal,
        read.READ,
        lambda unit: read.list_reclaims(
            unit,
            states=states,
            job_id=None if job_id is None else JobId(job_id),
            before=before,
            limit=limit + 1,
        ),
    )

    def behind(last: ReclaimView) -> str:
        position = [last.reclaim.notified_at.isoformat(), last.reclaim.id]
        return make_cursor(dependencies.secret_key, filters, position)

    return page_of(found, limit, reclaim_view, behind)


@router.get("/reclaims/{reclaim_id}")
def show_reclaim(
    reclaim_id: str, request: Request, principal: Annotated[Principal, requires(Permission.JOB_READ)]
) -> documents.Reclaim:
    """Return one reclaim with its deadline, reason and outcome."""
    found_id = ReclaimId(require_id("reclaim", reclaim_id))
    units = dependencies_of(request).units
    return reclaim_view(reading(units, principal, read.READ, lambda unit: read.get(unit, found_id)))
