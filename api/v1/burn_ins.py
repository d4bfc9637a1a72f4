"""Routes of burn-ins: reading, ordering, and the agents' side."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from api.bodies import described_by, json_body, wire_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.lists import Cursor, PageRequest, Within
from api.permissions import requires, requires_of_host
from api.reading import PRINTABLE, Limit, NodeNamed, reading, require_id
from api.views import burn_in_view
from api.wire_answers import answered, taking
from control.health.burn_ins import hosts, orders
from control.health.burn_ins import read as reading_burn_ins
from control.health.burn_ins.read import BurnInFilter
from muster import documents
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid
from muster.domain.principals import Permission, Principal
from muster.domain.states import BurnInOutcome, BurnInState
from muster.domain.strict import StrictModel, Text
from muster.wire.burn_in import BurnInAnswer, BurnInPoll, BurnInPollAnswer, BurnInReport

router = APIRouter()
Node = Annotated[Principal, requires_of_host(Permission.HOST_REPORT)]
Reader = Annotated[Principal, requires(Permission.GPU_READ)]
Named = Annotated[str | None, Query(max_length=128, pattern=PRINTABLE)]


class WantedBurnIn(StrictModel):
    reason: Annotated[Text, Field(min_length=1, max_length=500)]


@router.get("/burn-ins", tags=["fleet"])
def list_burn_ins(
    request: Request,
    principal: Reader,
    within: Annotated[Within, Depends()],
    gpu: Named = None,
    node: NodeNamed = None,
    state: Annotated[list[BurnInState] | None, Query(max_length=10)] = None,
    outcome: Annotated[list[BurnInOutcome] | None, Query(max_length=10)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.BurnInPage:
    """Return burn-ins without figures, the newest order first unless ``order`` says otherwise.

    ``since`` and ``until`` are about the time at which they were ordered.
    """
    states, outcomes = sorted(state or []), sorted(outcome or [])
    wanted = BurnInFilter(None if gpu is None else GpuUuid(gpu), node, states, outcomes, within.span)
    return PageRequest(request, principal, reading_burn_ins.SORTS[within.order], cursor, limit).answer(
        reading_burn_ins.READ,
        {"gpu": gpu, "node": node, "states": states, "outcomes": outcomes},
        lambda unit, part: reading_burn_ins.list_burn_ins(unit, wanted, part),
        burn_in_view,
        newer=within.conditions,
    )


@router.get("/burn-ins/{burn_in_id}", tags=["fleet"])
def show_burn_in(burn_in_id: str, request: Request, principal: Reader) -> documents.BurnInDetail:
    """Return one burn-in with all its measurements."""
    found_id = require_id("burn_in", burn_in_id)
    row = reading(
        dependencies_of(request).units,
        principal,
        reading_burn_ins.READ,
        lambda unit: reading_burn_ins.get(unit, found_id),
    )
    return {**burn_in_view(row), "figures": row.figures}


@router.post(
    "/gpus/{uuid}/burn-in",
    response_model=documents.OrderedBurnIn,
    status_code=201,
    tags=["fleet"],
    openapi_extra=described_by(WantedBurnIn),
)
def order_burn_in(
    uuid: str,
    principal: Annotated[Principal, requires(Permission.GPU_WRITE)],
    wanted: Annotated[WantedBurnIn, json_body(WantedBurnIn)],
    change: Changing,
) -> JSONResponse:
    """Order a burn-in; it runs as soon as nothing holds the GPU. A passed one returns a QUARANTINED GPU to service."""
    if not (uuid.isascii() and uuid.isprintable() and len(uuid) <= 128):
        raise NotFoundError
    return change.run(
        principal,
        orders.ORDER,
        lambda unit: orders.order(unit, GpuUuid(uuid), reason=wanted.reason),
        lambda row: Answer(burn_in_view(row), 201, location=f"/v1/burn-ins/{row.id}"),
    )


@taking(router, "/hosts/self/burn-ins/ask", BurnInPoll, BurnInPollAnswer, tags=["hosts"])
async def ask_for_burn_ins(
    request: Request, node: Node, message: Annotated[BurnInPoll, wire_body(BurnInPoll)]
) -> Response:
    """Return the burn-ins that this node is to run now. One that it was given and has not reported is given again."""
    return await answered(request, node, hosts.POLL, lambda unit: hosts.poll(unit, message))


@taking(router, "/hosts/self/burn-ins/{burn_in_id}/report", BurnInReport, BurnInAnswer, tags=["hosts"])
async def report_burn_in(
    burn_in_id: str, request: Request, node: Node, message: Annotated[BurnInReport, wire_body(BurnInReport)]
) -> Response:
    """Report figures, or why there are none; a repeated report has no effect."""
    found_id = require_id("burn_in", burn_in_id)
    return await answered(request, node, hosts.REPORT, lambda unit: hosts.report(unit, found_id, message))
