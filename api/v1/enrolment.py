"""Join tokens for operators; enrolment and hourly tokens for agents, whose credential is in the body."""

from datetime import timedelta
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from api.address_limit import address_of, limited_by
from api.bodies import described_by, described_by_wire, json_body, wire_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.permissions import public, requires
from api.problems import request_id_of
from api.reading import require_id
from api.refusals import refusing_also
from api.views import time_of
from control.core.unit_of_work import UnitOfWork
from control.hosts import enrolment, join_tokens, node_tokens
from muster import documents
from muster.domain.errors import ForbiddenError, UnauthenticatedError, UnavailableError
from muster.domain.ids import NodeId
from muster.domain.principals import Permission, Principal
from muster.domain.strict import Line, StrictModel
from muster.wire.enrolment import EnrolAnswer, EnrolRequest, TokenAnswer, TokenRequest
from muster.wire.messages import WireAnswer

router = APIRouter(tags=["enrolment"])
_CREDENTIAL = refusing_also(UnauthenticatedError, ForbiddenError, UnavailableError)


class WantedJoinToken(StrictModel):
    """A join token to create."""

    host_name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
    expires_in_s: Annotated[int, Field(ge=1, le=86_400)] = 900
    address: Line | None = None
    rack: Line | None = None


@router.post(
    "/join-tokens", response_model=documents.JoinToken, status_code=201, openapi_extra=described_by(WantedJoinToken)
)
def create_join_token(
    principal: Annotated[Principal, requires(Permission.NODE_WRITE)],
    wanted: Annotated[WantedJoinToken, json_body(WantedJoinToken)],
    change: Changing,
) -> JSONResponse:
    """Create a join token: one use, for a host of this name.

    ``token`` is in this answer alone, so no Idempotency-Key is kept for it.
    """

    def work(unit: UnitOfWork) -> join_tokens.NewJoinToken:
        return join_tokens.create(
            unit,
            host_name=wanted.host_name,
            lifetime=timedelta(seconds=wanted.expires_in_s),
            address=wanted.address,
            rack=wanted.rack,
        )

    def render(made: join_tokens.NewJoinToken) -> Answer:
        body = {
            "token": made.token.text,
            "host_name": made.row.host_name,
            "expires_at": time_of(made.row.expires_at),
            "address": made.row.address,
            "rack": made.row.rack,
        }
        return Answer(body, 201)

    return change.without_key().run(principal, join_tokens.CREATE, work, render)


@router.post(
    "/enrol",
    response_model=None,
    openapi_extra=described_by_wire(EnrolRequest, EnrolAnswer),
    dependencies=[public("the join token in the body is the credential"), limited_by("joining"), _CREDENTIAL],
)
def enrol(request: Request, message: Annotated[EnrolRequest, wire_body(EnrolRequest)]) -> Response:
    """Exchange a join token, once, for a node. The same host may repeat its own request."""
    units = dependencies_of(request).units
    answer = enrolment.enrol(units, message, address=address_of(request), request_id=request_id_of(request))
    return _wire(answer)


@router.post(
    "/nodes/{node_id}/token",
    response_model=None,
    openapi_extra=described_by_wire(TokenRequest, TokenAnswer),
    dependencies=[public("the signature in the body is the credential"), limited_by("joining"), _CREDENTIAL],
)
def issue_token(node_id: str, request: Request, message: Annotated[TokenRequest, wire_body(TokenRequest)]) -> Response:
    """Issue a token for an hour, for a signature by the node's own key."""
    found_id = NodeId(require_id("node", node_id))
    units = dependencies_of(request).units
    return _wire(
        node_tokens.issue(units, found_id, message, address=address_of(request), request_id=request_id_of(request))
    )


def _wire(answer: WireAnswer) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
