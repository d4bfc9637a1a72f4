"""One stream a page: it reports that something on the page has changed, so that the page fetches its parts again."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.dependencies import AppDependencies, dependencies_of
from api.reading import After
from api.streams import COMMENT, Broadcast, LastEventId, Pulse, position_in, sse
from console.session import Viewer, sees
from control.core.events import EventRecord, events_behind
from muster.domain.principals import Permission, Principal

router = APIRouter()
PAGE: Final = 500
QUIET_S: Final = 0.5
"""Pause in which changes are collected: a page redraws at most twice a second."""
WAIT_S: Final = 5.0


@router.get("/live")
async def live(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.EVENT_READ)],
    about: Annotated[str, Query(max_length=2048)] = "",
    after: After | None = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream changes. ``about``: ids or beginnings of kinds, by commas; empty: anything that the viewer may see.

    ``after``: the page is at least as new as this position, so events since then are sent, also from before the stream.
    """
    wanted = tuple(part for part in about.split(",") if part)
    newest = viewer.signed_in.events_position
    begin = position_in(last_event_id, newest if after is None else after)
    return sse(
        request,
        viewer.principal,
        _frames(dependencies_of(request), viewer.principal, wanted, request.app.state.broadcast, (begin, newest)),
    )


async def _frames(
    dependencies: AppDependencies,
    principal: Principal,
    wanted: tuple[str, ...],
    broadcast: Broadcast,
    positions: tuple[int, int],
) -> AsyncIterator[bytes]:
    """Yield changes. ``positions``: what the page has seen, and the newest one when its stream was opened."""
    pulse = Pulse(asyncio.get_running_loop().time)
    after, newest = positions
    yield b": connected\n\n"
    if after > newest or newest - after > PAGE:  # after a restore, or after a long absence, all is read again
        after = newest
        yield _changed(after, [])
    while True:
        found = await run_in_threadpool(_page, dependencies, principal, after)
        if found:
            after = found[-1].position or after
            relevant = [event for event in found if _is_about(event, wanted)]
            if relevant:
                yield _changed(after, relevant)
                pulse.spoke()
            await asyncio.sleep(QUIET_S)
            continue
        if pulse.is_due():
            yield COMMENT
        await broadcast.wait(WAIT_S)


def _changed(position: int, reported: Sequence[EventRecord]) -> bytes:
    data = json.dumps({"kinds": sorted({event.kind for event in reported})}, separators=(",", ":"))
    return f"event: changed\nid: {position}\ndata: {data}\n\n".encode()


def _is_about(event: EventRecord, wanted: tuple[str, ...]) -> bool:
    if not wanted:
        return True
    names = (event.subject_id, event.payload.get("job_id"), event.payload.get("node_id"), event.payload.get("gpu_uuid"))
    return any(one in names or event.kind.startswith(one) for one in wanted)


def _page(dependencies: AppDependencies, principal: Principal, after: int) -> Sequence[EventRecord]:
    return events_behind(dependencies.units, principal, after, limit=PAGE)
