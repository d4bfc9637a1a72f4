"""Pages of signing in, by a person's name and password or by an API key, and of signing out."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from api.address_limit import AddressLimit, address_of
from api.dependencies import dependencies_of
from api.permissions import public
from console.forms import Form
from console.rendering import pages_of
from console.session import COOKIE, SIGN_IN, Viewer, clear_cookie, leaves, safe_next, set_cookie, viewer_of
from control.tenants.sessions import sign_in_by_key, sign_in_by_password, sign_out
from muster.domain.errors import MalformedRequestError, MusterError, RateLimitedError, UnauthenticatedError
from muster.tokens import TOKEN_PREFIX, Token

router = APIRouter()
BURST: Final = 20
PER_S: Final = 0.5
WRONG: Final = "That name and password open nothing. Check both; an operator can set a new password."
WRONG_KEY: Final = "This key opens nothing: it is mistyped, revoked, expired, or a host's."


@router.get("/sign-in", dependencies=[public("a person without a session comes here")])
def sign_in_page(
    request: Request, after: Annotated[str | None, Query(alias="next", max_length=2048)] = None
) -> Response:
    if COOKIE in request.cookies and _is_signed_in(request):
        return RedirectResponse(safe_next(after), status_code=303)
    return _page(request, safe_next(after))


@router.post("/sign-in", dependencies=[public("the name and password, or the key, are the credential")])
def sign_in(request: Request, fields: Form) -> Response:
    """Sign in. Every wrong credential gets the same answer, at a pace that makes guessing pointless."""
    after = safe_next(fields.get("next"))
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise MalformedRequestError("sign in on the console's own page")
    name = fields.get("name", "").strip()[:256]
    try:
        limit: AddressLimit = request.app.state.signing_in
        limit.take(address_of(request))
        token = _token(request, name, fields.get("password", ""))
    except RateLimitedError as error:
        return _page(request, after, name=name, error=f"{error.detail}. {error.suggestion}", status=error.status)
    except UnauthenticatedError:
        words = WRONG_KEY if name == "" else WRONG
        return _page(request, after, name=name, error=words, status=401)
    answer = RedirectResponse(after, status_code=303)
    set_cookie(answer, token.text)
    return answer


@router.post("/sign-out")
def leave(request: Request, viewer: Annotated[Viewer, leaves()]) -> Response:
    sign_out(dependencies_of(request).units, viewer.signed_in)
    answer = RedirectResponse(SIGN_IN, status_code=303)
    clear_cookie(answer)
    return answer


def _token(request: Request, name: str, secret: str) -> Token:
    """Return a session's token for a name and its password; or for a key alone, in either field, as people paste it."""
    units = dependencies_of(request).units
    address = address_of(request)
    key = next((text.strip() for text in (secret, name) if text.strip().startswith(TOKEN_PREFIX)), None)
    if key is not None and (name in {"", key}):
        return sign_in_by_key(units, key, address=address)
    return sign_in_by_password(units, name, secret[:1024], address=address)


def _is_signed_in(request: Request) -> bool:
    try:
        viewer_of(request)
    except MusterError:
        return False
    return True


def _page(request: Request, after: str, *, name: str = "", error: str | None = None, status: int = 200) -> Response:
    return pages_of(request).page(request, "sign_in.html", None, status=status, after=after, name=name, error=error)
