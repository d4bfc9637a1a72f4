"""Routes of cordons."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.lists import Cursor, Labels, ManyAPage, PageRequest, Racked, Within, place_in
from api.permissions import requires
from api.reading import PRINTABLE, NodeNamed, require_id
from api.views import cordon_view
from control.fleet import cordons
from control.fleet.cordons import CordonFilter
from muster import documents
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import Permission, Principal
from muster.domain.strict import Moment, StrictModel, Text

router = APIRouter(tags=["fleet"])
CORDONS_A_PAGE = 1000
Reason = Annotated[Text, Field(min_length=1, max_length=500)]


class NewCordon(StrictModel):
    """A cordon on exactly one of ``node_id`` and ``gpu_uuid``; without ``until`` it stands until it is released."""

    node_id: Text | None = None
    gpu_uuid: Text | None = None
    reason: Reason
    until: Moment | None = None


class CordonRelease(StrictModel):
    reason: Reason | None = None


@router.post("/cordons", response_model=documents.ChangedCordon, status_code=201, openapi_extra=described_by(NewCordon))
def create_cordon(
    principal: Annotated[Principal, requires(Permission.NODE_WRITE)],
    wanted: Annotated[NewCordon, json_body(NewCordon)],
    change: Changing,
) -> JSONResponse:
    """Keep a node or a GPU out of new placements; running jobs stay."""
    node_id = None if wanted.node_id is None else NodeId(wanted.node_id)
    gpu_uuid = None if wanted.gpu_uuid is None else GpuUuid(wanted.gpu_uuid)
    until: datetime | None = wanted.until
    return change.run(
        principal,
        cordons.CREATE,
        lambda unit: cordons.create(unit, reason=wanted.reason, node_id=node_id, gpu_uuid=gpu_uuid, until=until),
        lambda cordon: Answer(cordon_view(cordon), 201),
    )


@router.post(
    "/cordons/{cordon_id}/release", response_model=documents.ChangedCordon, openapi_extra=described_by(CordonRelease)
)
def release_cordon(
    cordon_id: str,
    principal: Annotated[Principal, requires(Permission.NODE_WRITE)],
    wanted: Annotated[CordonRelease, json_body(CordonRelease)],
    change: Changing,
) -> JSONResponse:
    """End a cordon; twice is the same as once."""
    found_id = require_id("cordon", cordon_id)
    return change.run(
        principal,
        cordons.RELEASE,
        lambda unit: cordons.release(unit, found_id, reason=wanted.reason),
        lambda cordon: Answer(cordon_view(cordon)),
    )


@router.get("/cordons")
def list_cordons(
    request: Request,
    principal: Annotated[Principal, requires(Permission.NODE_READ)],
    within: Annotated[Within, Depends()],
    node: NodeNamed = None,
    rack: Racked = None,
    label: Labels = None,
    owner: Annotated[str | None, Query(max_length=256, pattern=r"^[ -~]+$")] = None,
    reason_code: Annotated[
        str | None, Query(max_length=64, pattern=PRINTABLE, description="its reason, as a fixed word")
    ] = None,
    cursor: Cursor = None,
    limit: ManyAPage = CORDONS_A_PAGE,
) -> documents.CordonPage:
    """Return the cordons that stand now or will, the newest first unless ``order`` says otherwise.

    ``node``, ``rack`` and ``label`` are about the node that it is on, or whose GPU.
    """
    wanted = CordonFilter(node, place_in(rack, label), owner, reason_code, within.span)
    bound = {"node": node, "rack": rack, "labels": sorted(label or []), "owner": owner, "reason_code": reason_code}
    return PageRequest(request, principal, cordons.SORTS[within.order], cursor, limit).answer(
        cordons.READ,
        {"path": "cordons", **bound, **within.conditions},
        lambda unit, part: cordons.list_open(unit, wanted, part),
        cordon_view,
    )
