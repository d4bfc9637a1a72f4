"""Page on which a signed-in person confirms the code that `muster login` shows on a terminal."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.address_limit import AddressLimit, address_of
from api.dependencies import dependencies_of
from console.forms import Form
from console.rendering import pages_of
from console.session import Viewer, anyone_signed_in, confirms
from control.core.unit_of_work import retrying
from control.tenants import logins
from control.tenants.logins import CommandLoginRecord
from muster.domain.errors import NotFoundError, RateLimitedError
from muster.domain.logins import shown_code

router = APIRouter()
BURST: Final = 20
PER_S: Final = 0.2
"""Pace of codes from one address: a person types one, and 25 billion are possible."""
CONFIRM: Final = "confirm"
DENY: Final = "deny"


@router.get("/login")
def login_page(
    request: Request,
    viewer: Annotated[Viewer, anyone_signed_in()],
    code: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """Show what asks for a key under a code, or a field for the code."""
    if not code:
        return _page(request, viewer)
    try:
        _take_from_limit(request)
        found = logins.find(dependencies_of(request).units, code)
    except (NotFoundError, RateLimitedError) as error:
        return _page(request, viewer, error=f"{error.detail}. {error.suggestion}", status=error.status)
    return _page(request, viewer, login=found)


@router.post("/login")
def decide_login(request: Request, viewer: Annotated[Viewer, confirms()], fields: Form) -> Response:
    """Confirm or deny the code, once."""
    is_confirmed = fields.get("answer") == CONFIRM
    if not is_confirmed and fields.get("answer") != DENY:
        return _page(request, viewer, error="Choose whether to confirm or to deny.", status=422)
    try:
        _take_from_limit(request)
        retrying(lambda: _decide(request, viewer, fields.get("code", ""), is_confirmed=is_confirmed))
    except (NotFoundError, RateLimitedError) as error:
        return _page(request, viewer, error=f"{error.detail}. {error.suggestion}", status=error.status)
    return _page(request, viewer, decided=CONFIRM if is_confirmed else DENY)


def _decide(request: Request, viewer: Viewer, code: str, *, is_confirmed: bool) -> None:
    with dependencies_of(request).units.begin(viewer.principal, logins.DECIDE) as unit:
        logins.decide(unit, code, session_id=viewer.signed_in.session_id, is_confirmed=is_confirmed)


def _take_from_limit(request: Request) -> None:
    limit: AddressLimit = request.app.state.typing_codes
    limit.take(address_of(request))


def _page(
    request: Request,
    viewer: Viewer,
    *,
    login: CommandLoginRecord | None = None,
    decided: str | None = None,
    error: str | None = None,
    status: int = 200,
) -> Response:
    code = None if login is None else shown_code(login.code)
    return pages_of(request).page(
        request, "login.html", viewer, status=status, login=login, code=code, decided=decided, error=error
    )
