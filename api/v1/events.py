"""Routes of events: pages by position, and a stream that continues where the last one stopped."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from api.dependencies import AppDependencies, dependencies_of
from api.lists import Cursor, OfTenant, PageRequest, Within
from api.permissions import requires
from api.reading import PRINTABLE, After, Limit
from api.refusals import refusing_also
from api.streams import COMMENT, Broadcast, EventStream, LastEventId, Pulse, frame, position_in, sse, streaming
from api.views import event_view, stretch_of
from control.core import events
from control.core.events import EventFilter, EventRecord
from muster import documents
from muster.domain.errors import CursorExpiredError
from muster.domain.ids import TenantId
from muster.domain.principals import Permission, Principal

router = APIRouter(tags=["events"])
_EXPIRING = refusing_also(CursorExpiredError)
STREAM_PAGE: Final = 200
WAIT_S: Final = 5.0


Word = Annotated[str | None, Query(min_length=1, max_length=256, pattern=PRINTABLE)]


@router.get("/events", dependencies=[_EXPIRING])
def list_events(
    request: Request,
    principal: Annotated[Principal, requires(Permission.EVENT_READ)],
    after: After = 0,
    limit: Limit = 50,
) -> documents.EventStretch:
    """Return events after a position, in order; a tenant sees its own."""
    found = _page(dependencies_of(request), principal, after, limit)
    return stretch_of([event_view(event) for event in found], after)


@router.get("/events/newest")
def newest_events(
    request: Request,
    principal: Annotated[Principal, requires(Permission.EVENT_READ)],
    within: Annotated[Within, Depends()],
    kind: Word = None,
    subject_id: Word = None,
    tenant_id: OfTenant = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.EventPage:
    """Return events, the newest first unless ``order`` says otherwise. A tenant sees its own."""
    of_tenant = None if tenant_id is None else TenantId(tenant_id)
    wanted = EventFilter(kind, subject_id, of_tenant, within.span)
    return PageRequest(request, principal, events.SORTS[within.order], cursor, limit).answer(
        events.READ,
        {"kind": kind, "subject_id": subject_id, "who": principal.tenant_id},
        lambda unit, part: events.list_events(unit, wanted, part),
        event_view,
        newer={"tenant_id": tenant_id, **within.conditions},
    )


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
    last_event_id: LastEventId = None,
) -> Response:
    """Stream server-sent events, ``id`` = position.

    ``Last-Event-ID`` or ``after`` resume; without them the stream begins at the newest.
    """
    dependencies = dependencies_of(request)
    after = position_in(last_event_id, after)
    if after is None:
        after = await run_in_threadpool(events.newest_position, dependencies.units)
    await run_in_threadpool(_page, dependencies, principal, after, 1)
    broadcast: Broadcast = request.app.state.broadcast
    return sse(request, principal, _frames(dependencies, principal, after, broadcast))


def _page(dependencies: AppDependencies, principal: Principal, after: int, limit: int) -> Sequence[EventRecord]:
    return events.events_behind(dependencies.units, principal, after, limit=limit, refuses_gap=True)


async def _frames(
    dependencies: AppDependencies, principal: Principal, after: int, broadcast: Broadcast
) -> AsyncIterator[bytes]:
    pulse = Pulse(asyncio.get_running_loop().time)
    # The reader knows from the start where to continue, even if nothing happens before the connection breaks.
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
