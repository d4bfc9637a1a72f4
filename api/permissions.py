"""Permissions of routes: each declares one, or why it needs none. Start-up refuses any other route.

Authorisation is a dependency of the route itself, never a rule about paths, so no spelling of a path can bypass it.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from fastapi import Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts

from api.authentication import authenticated
from api.host_threads import HostThreads
from api.refusals import refusing
from muster.domain.errors import ForbiddenError, UnauthenticatedError, UnavailableError
from muster.domain.principals import Permission, Principal

_DECLARES: Final = "__muster_declares__"


class UndeclaredRouteError(RuntimeError):
    """A route without a permission; the API does not start."""


def declaring(check: Callable[..., Any], declaration: str) -> Callable[..., Any]:
    """Mark ``check`` as the dependency that declares the permission of routes that depend on it, and return it."""
    setattr(check, _DECLARES, declaration)
    return check


def requires(permission: Permission) -> Any:
    """Return a dependency that gives the calling principal, after a check that it has ``permission``."""

    def check(request: Request) -> Principal:
        principal = authenticated(request)
        principal.require(permission)
        return principal

    return Depends(refusing(declaring(check, str(permission)), UnauthenticatedError, ForbiddenError, UnavailableError))


def signed_in() -> Any:
    """Return a dependency that gives the calling principal, of any role."""

    def check(request: Request) -> Principal:
        return authenticated(request)

    return Depends(refusing(declaring(check, "signed in"), UnauthenticatedError, UnavailableError))


def requires_of_host(permission: Permission) -> Any:
    """Return a dependency as ``requires`` does, which checks the key of a known host in a thread for hosts."""

    def principal_of(request: Request) -> Principal:
        principal = authenticated(request)
        principal.require(permission)
        return principal

    async def check(request: Request) -> Principal:
        threads: HostThreads = request.app.state.host_threads
        token = request.headers.get("authorization", "").encode("latin-1")
        return await threads.authenticate(token, principal_of, request)

    return Depends(refusing(declaring(check, str(permission)), UnauthenticatedError, ForbiddenError, UnavailableError))


def public(why: str) -> Any:
    """Return a dependency which declares that no credential is needed, and why."""

    async def check() -> None:
        return None

    return Depends(declaring(check, f"public: {why}"))


def declared_routes(app: FastAPI) -> Iterator[tuple[str, str, str]]:
    """Yield (method, path, declaration) of each route.

    Raises:
        UndeclaredRouteError: a route, websocket or mount that declares nothing.
    """
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        declaration = _declared_in(dependant) if isinstance(dependant, Dependant) else None
        path = route.path or repr(route.original_route)
        if declaration is None:
            message = f"{path}: declare requires(Permission.…), asks(…) or public('why')"
            raise UndeclaredRouteError(message)
        for method in sorted(route.methods or {"*"}):
            yield method, path, declaration


def _declared_in(dependant: Dependant) -> str | None:
    call: Callable[..., Any] | None = dependant.call
    own = getattr(call, _DECLARES, None)
    if own is not None:
        return str(own)
    return next((found for inner in dependant.dependencies if (found := _declared_in(inner))), None)
