"""Answers to a host's daemons: one unit of work, tried again where transactions collide, as JSON of the wire."""

from collections.abc import Callable

import msgspec
from fastapi import Request
from fastapi.responses import Response

from api.dependencies import dependencies_of
from api.host_threads import HostThreads
from control.core.unit_of_work import UnitOfWork, retrying
from muster.domain.principals import Principal
from muster.wire.messages import WireAnswer


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
