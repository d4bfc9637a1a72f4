"""Routes of the circuit breaker: GPUs that rules have taken out, and closing a scope that stopped them."""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.gpu_views import breaker_view
from api.permissions import requires
from api.reading import reading
from control.health import breakers
from muster import documents
from muster.domain.errors import NotFoundError
from muster.domain.principals import Permission, Principal
from muster.domain.strict import StrictModel, Text

router = APIRouter(tags=["fleet"])


class BreakerClosing(StrictModel):
    """A scope to close."""

    scope: Annotated[Text, Field(min_length=1, max_length=500)]
    reason: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]


@router.get("/breakers")
def list_breakers(
    request: Request, principal: Annotated[Principal, requires(Permission.GPU_READ)]
) -> documents.BreakerPage:
    """Return each breaker with its scopes: open ones first, then the fullest."""
    found = reading(dependencies_of(request).units, principal, breakers.READ, breakers.list_breakers)
    return {"items": [breaker_view(each) for each in found], "next_cursor": None}


@router.post(
    "/breakers/{name}/close", response_model=documents.ChangedBreaker, openapi_extra=described_by(BreakerClosing)
)
def close_breaker(
    name: str,
    principal: Annotated[Principal, requires(Permission.GPU_WRITE)],
    requested: Annotated[BreakerClosing, json_body(BreakerClosing)],
    change: Changing,
) -> JSONResponse:
    """Let rules act in a scope again. Moves that waited for it are made within a minute."""
    if "\x00" in name:
        raise NotFoundError
    return change.run(
        principal,
        breakers.CLOSE,
        lambda unit: breakers.close_scope(unit, name, requested.scope, reason=requested.reason),
        lambda found: Answer(breaker_view(found)),
    )
