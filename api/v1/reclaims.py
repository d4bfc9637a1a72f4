"""Routes of reclaims: each with its victim, beneficiary, deadline, and the outcome for the victim's work."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from api.dependencies import dependencies_of
from api.lists import Cursor, OfTenant, PageRequest, Within
from api.permissions import requires
from api.reading import PRINTABLE, Limit, reading, require_id
from api.views import reclaim_view
from control.reclaim import read
from control.reclaim.read import ReclaimFilter
from muster import documents
from muster.domain.ids import JobId, ReclaimId, TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.states import ReclaimState
from muster.domain.strict import Name

router = APIRouter(tags=["reclaims"])


@router.get("/reclaims")
def list_reclaims(
    request: Request,
    principal: Annotated[Principal, requires(Permission.JOB_READ)],
    within: Annotated[Within, Depends()],
    state: Annotated[list[ReclaimState] | None, Query(max_length=5)] = None,
    job_id: Annotated[
        str | None, Query(max_length=64, pattern=PRINTABLE, description="the victim's job or the beneficiary")
    ] = None,
    tenant_id: OfTenant = None,
    tier: Annotated[Name | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.ReclaimPage:
    """Return reclaims, the newest first unless ``order`` says otherwise. A tenant sees its own side alone.

    ``since`` and ``until`` are about the time of the notice.
    """
    states = sorted(state or [])
    wanted = ReclaimFilter(
        states,
        None if job_id is None else JobId(job_id),
        None if tenant_id is None else TenantId(tenant_id),
        tier,
        within.span,
    )
    return PageRequest(request, principal, read.SORTS[within.order], cursor, limit).answer(
        read.READ,
        {"states": states, "job_id": job_id, "who": principal.tenant_id},
        lambda unit, part: read.list_reclaims(unit, wanted, part),
        reclaim_view,
        newer={"tenant_id": tenant_id, "tier": tier, **within.conditions},
    )


@router.get("/reclaims/{reclaim_id}")
def show_reclaim(
    reclaim_id: str, request: Request, principal: Annotated[Principal, requires(Permission.JOB_READ)]
) -> documents.Reclaim:
    """Return one reclaim with its deadline, reason and outcome."""
    found_id = ReclaimId(require_id("reclaim", reclaim_id))
    units = dependencies_of(request).units
    return reclaim_view(reading(units, principal, read.READ, lambda unit: read.get(unit, found_id)))
