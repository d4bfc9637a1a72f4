"""Viewers of pages: the session's cookie, the permission that the page declares, the redirect to the sign-in page."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

from fastapi import Depends, Request
from starlette.responses import Response

from api.address_limit import address_of
from api.dependencies import dependencies_of
from api.permissions import declaring
from api.places import SESSION_COOKIE
from api.reading import reading
from console.forms import Form, csrf_token, require_csrf
from control.core.unit_of_work import UnitOfWork
from control.tenants.sessions import LIFETIME, SignedIn, resume
from muster.domain.errors import UnauthenticatedError
from muster.domain.principals import Permission, Principal

T = TypeVar("T")
COOKIE: Final = SESSION_COOKIE
SIGN_IN: Final = "/console/sign-in"


class SignInNeededError(UnauthenticatedError):
    """No person is signed in: the browser is redirected to the sign-in page, and back."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A signed-in person, with the token that their forms must carry."""

    signed_in: SignedIn
    secret_key: bytes

    @property
    def principal(self) -> Principal:
        return self.signed_in.principal

    @property
    def csrf(self) -> str:
        return csrf_token(self.secret_key, self.signed_in.session_id)

    def may(self, permission: str) -> bool:
        return self.principal.may(Permission(permission))


def viewer_of(request: Request) -> Viewer:
    """Return the viewer. Raises ``SignInNeededError``: no cookie, or one that opens nothing any more."""
    dependencies = dependencies_of(request)
    token = request.cookies.get(COOKIE)
    if token is None:
        raise SignInNeededError
    try:
        signed_in = resume(
            dependencies.units,
            token,
            address=address_of(request),
            request_id=getattr(request.state, "request_id", None),
        )
    except UnauthenticatedError as fault:
        raise SignInNeededError from fault
    request.state.principal = signed_in.principal
    return Viewer(signed_in, dependencies.secret_key)


def sees(permission: Permission) -> Any:
    """Return a dependency that gives the viewer of a page, after a check of ``permission``."""

    def check(request: Request) -> Viewer:
        viewer = viewer_of(request)
        viewer.principal.require(permission)
        return viewer

    return Depends(declaring(check, str(permission)))


def anyone_signed_in() -> Any:
    """Return a dependency that gives the viewer, of any role."""

    def check(request: Request) -> Viewer:
        return viewer_of(request)

    return Depends(declaring(check, "signed in"))


def changes(permission: Permission) -> Any:
    """Return a dependency that gives the viewer of a change: as ``sees``, and the form carries the session's token."""

    def check(request: Request, fields: Form) -> Viewer:
        viewer = viewer_of(request)
        require_csrf(viewer.secret_key, viewer.signed_in.session_id, request, fields)
        viewer.principal.require(permission)
        return viewer

    return Depends(declaring(check, str(permission)))


def confirms() -> Any:
    """Return a dependency that gives the viewer who confirms something of their own: any role, by the page's form."""
    return leaves()


def leaves() -> Any:
    """Return a dependency that gives the viewer who signs out: any role, with the session's token."""

    def check(request: Request, fields: Form) -> Viewer:
        viewer = viewer_of(request)
        require_csrf(viewer.secret_key, viewer.signed_in.session_id, request, fields)
        return viewer

    return Depends(declaring(check, "signed in"))


def read_at_once(request: Request, viewer: Viewer, action: str, work: Callable[[UnitOfWork], T]) -> T:
    """Return the result of ``work`` for the viewer, all of whose reads see one state, so that sums agree."""
    units = dependencies_of(request).units
    return reading(units, viewer.principal, action, work, is_one_snapshot=True)


def set_cookie(response: Response, token: str) -> None:
    """Set the session's cookie.

    ``__Host-``: only over TLS or loopback, for this host alone, for every path; invisible to scripts.
    """
    response.set_cookie(
        COOKIE, token, max_age=int(LIFETIME.total_seconds()), path="/", secure=True, httponly=True, samesite="lax"
    )


def clear_cookie(response: Response) -> None:
    response.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="lax")


def way_to_sign_in(request: Request) -> str:
    """Return the sign-in page's address with the page to return to. Only a path of our own is ever named."""
    if request.method != "GET":
        return SIGN_IN
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{SIGN_IN}?next={quote(request.url.path + query, safe='')}"


def safe_next(text: str | None) -> str:
    """Return where to go after sign-in: a page of the console, never another site."""
    if text is None or not text.startswith("/console") or text.startswith("//") or "\\" in text or "\n" in text:
        return "/console"
    return text
