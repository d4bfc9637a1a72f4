"""Routes of the command's sign-in: a code that a person confirms in the console, and the key that follows."""

from typing import Annotated, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, Field

from api.address_limit import address_of, limited_by
from api.bodies import described_by, json_body
from api.dependencies import dependencies_of
from api.permissions import public, signed_in
from api.problems import request_id_of
from api.refusals import refusing_also
from api.views import key_view, time_of
from control.core.unit_of_work import retrying
from control.tenants import logins
from muster import documents
from muster.domain.errors import UnauthenticatedError, UnavailableError
from muster.domain.logins import INTERVAL_S, shown_code
from muster.domain.principals import Principal
from muster.domain.strict import Line, StrictModel

router = APIRouter(tags=["keys"])
BURST: Final = 10
PER_S: Final = 0.1
ANSWER_BURST: Final = 60
ANSWER_PER_S: Final = 5.0
"""Several persons of one address may wait at once, each asking every two seconds."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must hold printable characters alone: a person reads it and decides by it")
    return text


class NewLogin(StrictModel):
    device: Annotated[Line, Field(max_length=128), AfterValidator(_printable)]


class LoginToken(StrictModel):
    login_token: Annotated[Line, Field(max_length=128)]


@router.post(
    "/logins",
    response_model=documents.StartedLogin,
    status_code=201,
    openapi_extra=described_by(NewLogin),
    dependencies=[
        public("the caller has no key yet; nothing follows without a confirmation"),
        limited_by("beginning_logins"),
        refusing_also(UnavailableError),
    ],
)
def begin_login(request: Request, wanted: Annotated[NewLogin, json_body(NewLogin)]) -> JSONResponse:
    """Ask for a code that a signed-in person confirms on ``page``. ``login_token`` is in this answer alone."""
    started = logins.begin(dependencies_of(request).units, device=wanted.device, address=address_of(request))
    code = shown_code(started.login.code)
    found: documents.StartedLogin = {
        "code": code,
        "page": f"{request.url.scheme}://{request.headers['host']}/console/login?code={code}",
        "login_token": started.token.text,
        "expires_at": time_of(started.login.expires_at),
        "interval_s": INTERVAL_S,
    }
    return JSONResponse(found, status_code=201)


@router.post(
    "/logins/answer",
    response_model=documents.LoginAnswer,
    openapi_extra=described_by(LoginToken),
    dependencies=[
        public("the token in the body is the credential"),
        limited_by("asking_logins"),
        refusing_also(UnauthenticatedError, UnavailableError),
    ],
)
def answer_login(request: Request, wanted: Annotated[LoginToken, json_body(LoginToken)]) -> JSONResponse:
    """Return the state of a sign-in, and with the first answer after its confirmation the key."""
    units, address, request_id = dependencies_of(request).units, address_of(request), request_id_of(request)
    taken = retrying(lambda: logins.take(units, wanted.login_token, address=address, request_id=request_id))
    made = taken.made
    found: documents.LoginAnswer = {
        "state": taken.state,
        "token": None if made is None else made.token.text,
        "key": None if made is None else key_view(made.key),
    }
    return JSONResponse(found)


@router.post("/sign-out")
def sign_out(request: Request, principal: Annotated[Principal, signed_in()]) -> documents.SignedOut:
    """Revoke the calling key if a sign-in of the command made it; any other key stays."""
    units = dependencies_of(request).units

    def revoke() -> bool:
        with units.begin(principal, logins.SIGN_OUT) as unit:
            return logins.sign_out(unit)

    return {"is_revoked": retrying(revoke)}
