"""Answers to a host's daemons: one unit of work, tried again where transactions collide, as JSON of the wire."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from api.bodies import described_by_wire
from api.dependencies import dependencies_of
from api.host_threads import HostThreads
from api.refusals import refusing_also
from control.core.unit_of_work import UnitOfWork, retrying
from muster.domain.errors import MusterError
from muster.domain.principals import Principal
from muster.wire.messages import WireAnswer, WireMessage

T = TypeVar("T")
Route = TypeVar("Route", bound=Callable[..., Any])


def taking(
    router: APIRouter,
    path: str,
    message_type: type[WireMessage],
    answer_type: type[WireAnswer],
    *refused: type[MusterError],
    tags: Sequence[str | Enum] = (),
) -> Callable[[Route], Route]:
    """Return the decorator of a route that takes a message of a host and gives an answer.

    ``refused``: also raised. ``tags``: of a router that has routes for others too.
    """
    also = [refusing_also(*refused)] if refused else []
    description = described_by_wire(message_type, answer_type)
    return router.post(path, response_model=None, openapi_extra=description, dependencies=also, tags=[*tags])


async def answered(
    request: Request, node: Principal, action: str, work: Callable[[UnitOfWork], WireAnswer], *, quiet: bool = False
) -> Response:
    """Return the answer, from a thread for hosts. ``quiet``: leases and positions, which leave no trace (I18)."""
    units = dependencies_of(request).units

    def once() -> WireAnswer:
        with units.begin(node, action, quiet=quiet) as unit:
            return work(unit)

    def body() -> bytes:
        return msgspec.json.encode(retrying(once))

    threads: HostThreads = request.app.state.host_threads
    return Response(await threads.run(body), media_type="application/json")


async def answered_after(
    request: Request,
    node: Principal,
    action: str,
    work: Callable[[UnitOfWork], T],
    finish: Callable[[T], WireAnswer],
    *,
    quiet: bool = False,
) -> Response:
    """Return what ``finish`` makes of the work after its commit: it may ask a service, so it uses no host's thread.

    ``quiet``: as of ``answered``.
    """
    units = dependencies_of(request).units

    def once() -> T:
        with units.begin(node, action, quiet=quiet) as unit:
            return work(unit)

    threads: HostThreads = request.app.state.host_threads
    found = await threads.run(lambda: retrying(once))
    answer = await run_in_threadpool(finish, found)
    return Response(msgspec.json.encode(answer), media_type="application/json")
