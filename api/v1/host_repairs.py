"""Routes of repairs by a host's agent: it asks for orders, and reports how they ended."""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.bodies import wire_body
from api.permissions import requires_of_host
from api.reading import require_id
from api.wire_answers import answered, taking
from control.health import repair_orders
from muster.domain.principals import Permission, Principal
from muster.wire.repair import RepairAnswer, RepairPoll, RepairPollAnswer, RepairReport

router = APIRouter(tags=["hosts"])
Node = Annotated[Principal, requires_of_host(Permission.HOST_REPORT)]


@taking(router, "/hosts/self/repairs/ask", RepairPoll, RepairPollAnswer)
async def ask_for_repair(
    request: Request, node: Node, message: Annotated[RepairPoll, wire_body(RepairPoll)]
) -> Response:
    """Return the node's next order, if any. An order that it was given and did not report before asking has failed."""
    return await answered(request, node, repair_orders.POLL, lambda unit: repair_orders.poll(unit, message))


@taking(router, "/hosts/self/repairs/{repair_id}/report", RepairReport, RepairAnswer)
async def report_repair(
    repair_id: str, request: Request, node: Node, message: Annotated[RepairReport, wire_body(RepairReport)]
) -> Response:
    """Report how a repair ended; a repeated report has no effect.

    `again_s`: the GPU's fault still stands; repeat then.
    """
    found_id = require_id("repair", repair_id)
    return await answered(
        request, node, repair_orders.REPORT, lambda unit: repair_orders.report(unit, found_id, message)
    )
