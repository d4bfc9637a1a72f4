"""Routes of work on a node: a drain asks running jobs to leave; in a maintenance window nothing about it is judged."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing, etag_of
from api.node_views import node_detail_view
from api.permissions import requires
from api.reading import require_node
from api.views import cordon_view
from control.core.unit_of_work import UnitOfWork
from control.fleet import maintenance
from control.hosts import drains
from control.hosts import read as nodes
from control.hosts.read import NodeDetail
from muster.documents import ChangedCordon
from muster.documents.nodes import ChangedNode
from muster.domain.principals import Permission, Principal
from muster.domain.strict import Moment, StrictModel, Text

router = APIRouter(tags=["fleet"])
WEEK_S = 604_800


class NewMaintenance(StrictModel):
    """A maintenance window."""

    reason: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]
    until: Moment
    starts_at: Moment | None = None
    evacuate_lead_s: Annotated[float, Field(gt=0, le=WEEK_S)] | None = None
    despite_budget: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")] | None = None


class NewDrain(StrictModel):
    """A drain. Its programs have by default the time that the policy gives an evacuated job."""

    reason: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]
    until: Moment | None = None
    deadline_s: Annotated[float, Field(gt=0, le=WEEK_S)] | None = None
    despite_budget: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")] | None = None


@router.post("/nodes/{node_id}/drain", response_model=ChangedNode, openapi_extra=described_by(NewDrain))
def drain_node(
    node_id: str,
    principal: Annotated[Principal, requires(Permission.NODE_WRITE)],
    wanted: Annotated[NewDrain, json_body(NewDrain)],
    change: Changing,
) -> JSONResponse:
    """Cordon the node, by its id or its name, and ask every job on it to leave for maintenance.

    ``drain.jobs_left`` of the node counts down. Releasing the cordon undoes it; jobs that were asked leave all the
    same.
    """
    named = require_node(node_id)
    until: datetime | None = wanted.until

    def work(unit: UnitOfWork) -> NodeDetail:
        found_id = drains.drain(
            unit,
            named,
            reason=wanted.reason,
            until=until,
            deadline_s=wanted.deadline_s,
            despite_budget=wanted.despite_budget,
        )
        return nodes.detail_of(unit, found_id)

    return change.run(
        principal, drains.DRAIN, work, lambda found: Answer(node_detail_view(found), etag=etag_of(found.node.version))
    )


@router.post(
    "/nodes/{node_id}/maintenance",
    response_model=ChangedCordon,
    status_code=201,
    openapi_extra=described_by(NewMaintenance),
)
def maintain_node(
    node_id: str,
    principal: Annotated[Principal, requires(Permission.NODE_WRITE)],
    wanted: Annotated[NewMaintenance, json_body(NewMaintenance)],
    change: Changing,
) -> JSONResponse:
    """Declare a window, by the node's id or its name, in which no new work comes to it and no finding about it counts.

    With `evacuate_lead_s` no job is placed there that would still run at that time before the start, and jobs that do
    run get their stop request then. Findings are kept and shown. A fault that still stands at the end counts from then
    on. Releasing its cordon ends it.
    """
    named = require_node(node_id)
    starts_at: datetime | None = wanted.starts_at
    until: datetime = wanted.until
    return change.run(
        principal,
        maintenance.DECLARE,
        lambda unit: maintenance.declare(
            unit,
            named,
            reason=wanted.reason,
            until=until,
            starts_at=starts_at,
            evacuate_lead_s=wanted.evacuate_lead_s,
            despite_budget=wanted.despite_budget,
        ),
        lambda cordon: Answer(cordon_view(cordon), 201),
    )
