"""Events: pages by position, and a stream that goes on where the last one stopped."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from api.dependencies import AppDependencies, dependencies_of
from api.permissions import requires
from api.reading import After, Limit
from api.refusals import refusing_also
from api.streams import COMMENT, Broadcast, EventStream, Pulse, frame, sse, streaming
from api.views import event_view, stretch_of
from muster import documents
from muster.db.models import Event
from muster.db.repositories.events import events_after, newest_position, oldest_position
from muster.domain.errors import CursorExpiredError
from muster.domain.principals import Permission, Principal

router = APIRouter(tags=["events"])
_EXPIRING = refusing_also(CursorExpiredError)
STREAM_PAGE: Final = 200
WAIT_S: Final = 5.0


@router.get("/events", dependencies=[_EXPIRING])
def list_events(
    request: Request,
    principal: Annotated[Principal, requires(Permission.EVENT_READ)],
    after: After = 0,
    limit: Limit = 50,
) -> documents.EventStretch:
    """Events behind a position, in order; a tenant sees its own."""
    found = _page(dependencies_of(request), principal, after, limit)
    return stretch_of([event_view(event) for event in found], after)


@router.get(
    "/events/stream",
    response_class=EventStream,
    responses=streaming("Each frame's data is an Event; its id is the position."),
    dependencies=[_EXPIRING],
)
async def stream_events(
    request: Request,
    principal: Annotated[Principal, requires(Permission.EVENT_READ)],
    after: After | None = None,
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
) -> Response:
    """Server-sent events, ``id`` = position; ``Last-Event-ID`` or ``after`` resume, else it begins at the newest."""
    dependencies = dependencies_of(request)
    if last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit():
        after = int(last_event_id)
    if after is None:
        after = await run_in_threadpool(_newest, dependencies)
    await run_in_threadpool(_page, dependencies, principal, after, 1)
    broadcast: Broadcast = request.app.state.broadcast
    return sse(_frames(dependencies, principal, after, broadcast))


def _newest(dependencies: AppDependencies) -> int:
    with dependencies.units.read() as session:
        return newest_position(session)


def _page(dependencies: AppDependencies, principal: Principal, after: int, limit: int) -> list[Event]:
    tenant_id = None if principal.sees_all_tenants else principal.tenant_id
    with dependencies.units.read() as session:
        oldest = oldest_position(session)
        if oldest is not None and after + 1 < oldest and after > 0:
            raise CursorExpiredError(oldest_position=oldest)
        return events_after(session, after, limit=limit, tenant_id=tenant_id)


async def _frames(
    dependencies: AppDependencies, principal: Principal, after: int, broadcast: Broadcast
) -> AsyncIterator[bytes]:
    pulse = Pulse(asyncio.get_running_loop().time)
    # From the first moment on the reader knows where to go on, even if nothing happens before the connection breaks.
    yield f"id: {after}\n\n".encode()
    while True:
        found = await run_in_threadpool(_page, dependencies, principal, after, STREAM_PAGE)
        for event in found:
            after = event.position or after
            yield frame(event_view(event), event=event.kind, position=after)
        if found:
            pulse.spoke()
            continue
        if pulse.is_due():
            yield COMMENT
        await broadcast.wait(WAIT_S)
