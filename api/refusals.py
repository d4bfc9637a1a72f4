"""Refusals of operations: each dependency of a route declares its own, and OpenAPI has the sum.

The rest is found from the route itself: a path may name a missing object, parameters, a cursor or an If-Match header
may not fit. A route adds refusals of its service by ``refusing_also``.
"""

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

from fastapi import Depends, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts

from muster.domain.errors import (
    REGISTRY,
    ClientVersionError,
    InternalError,
    InvalidCursorError,
    MalformedRequestError,
    MusterError,
    NotFoundError,
    PreconditionFailedError,
    RateLimitedError,
    ValidationFailedError,
)

_REFUSES: Final = "__muster_refuses__"
_API_PREFIX: Final = "/v1/"
_ALWAYS: Final = (MalformedRequestError, InternalError, RateLimitedError)
Kind = type[MusterError]


def refusing(check: Callable[..., Any], *kinds: Kind) -> Callable[..., Any]:
    """Return ``check``, marked as one that may raise ``kinds``: every route which depends on it documents them."""
    setattr(check, _REFUSES, kinds)
    return check


def refusing_also(*kinds: Kind) -> Any:
    """Return a dependency for errors that the route's service may raise beyond its parameters' faults."""

    async def check() -> None:
        return None

    return Depends(refusing(check, *kinds))


def documented_path(path: str) -> str:
    """Return a route's path as OpenAPI has it: a parameter that may have slashes is named as any other."""
    return path.replace(":path}", "}")


def refused_statuses(app: FastAPI) -> dict[tuple[str, str], list[int]]:
    """Return (method, path) → the statuses of problems that the operation may answer with, in order."""
    found: dict[tuple[str, str], list[int]] = {}
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        if not isinstance(dependant, Dependant):
            continue
        kinds: set[Kind] = {*_ALWAYS, *_stated_kinds(dependant), *_read_off(dependant)}
        if (route.path or "").startswith(_API_PREFIX):
            kinds.add(ClientVersionError)
        for method in route.methods or ():
            found[method, documented_path(route.path or "")] = sorted({kind.status for kind in kinds})
    return found


def responses_of_problems() -> dict[str, dict[str, Any]]:
    """Return the components of problem responses: one a status, with the possible codes of its problem."""
    schema = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    responses: dict[str, dict[str, Any]] = {}
    every: tuple[Kind, ...] = (*REGISTRY.values(), InternalError)
    for status in sorted({kind.status for kind in every}):
        kinds = [kind for kind in every if kind.status == status]
        words = "; ".join(dict.fromkeys(f"`{kind.code}`: {kind.title}" for kind in kinds))
        responses[response_name(status)] = {"description": words, "content": schema}
        if status in {HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
            seconds = {"schema": {"type": "integer"}, "description": "seconds until it is worth asking again"}
            responses[response_name(status)]["headers"] = {"Retry-After": seconds}
    return responses


def response_name(status: int) -> str:
    """Return the component's name: the status in the words of HTTP, such as ``NotFound``."""
    return "".join(word.capitalize() for word in HTTPStatus(status).phrase.replace("-", " ").split())


def _stated_kinds(dependant: Dependant) -> Iterator[Kind]:
    yield from getattr(dependant.call, _REFUSES, ())
    for inner in dependant.dependencies:
        yield from _stated_kinds(inner)


def _read_off(dependant: Dependant) -> Iterator[Kind]:
    if dependant.path_params:
        yield NotFoundError
    names = {field.alias.lower() for field in (*dependant.query_params, *dependant.header_params)}
    if names:
        yield ValidationFailedError
    if "cursor" in names:
        yield InvalidCursorError
    if "if-match" in names:
        yield PreconditionFailedError
    for inner in dependant.dependencies:
        yield from _read_off(inner)
