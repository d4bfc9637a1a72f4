"""One stream a page: says that something it shows has changed, so that the page asks for its parts again."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.dependencies import AppDependencies, dependencies_of
from api.streams import COMMENT, Broadcast, Pulse, sse
from console.session import Viewer, sees
from muster.db.models import Event
from muster.db.repositories.events import events_after, newest_position
from muster.domain.principals import Permission, Principal

router = APIRouter()
PAGE: Final = 500
QUIET_S: Final = 0.5
"""Changes are told together: a page redraws at most twice a second."""
WAIT_S: Final = 5.0


@router.get("/live")
async def live(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.EVENT_READ)],
    about: Annotated[str, Query(max_length=2048)] = "",
) -> Response:
    """``about``: ids or kinds' beginnings, by commas; empty: anything that the viewer may see."""
    wanted = tuple(part for part in about.split(",") if part)
    return sse(_frames(dependencies_of(request), viewer.principal, wanted, request.app.state.broadcast))


async def _frames(
    dependencies: AppDependencies, principal: Principal, wanted: tuple[str, ...], broadcast: Broadcast
) -> AsyncIterator[bytes]:
    pulse = Pulse(asyncio.get_running_loop().time)
    after = await run_in_threadpool(_newest, dependencies)
    yield b": connected\n\n"
    while True:
        found = await run_in_threadpool(_page, dependencies, principal, after)
        if found:
            after = found[-1].position or after
            told = [event for event in found if _is_about(event, wanted)]
            if told:
                data = json.dumps({"kinds": sorted({event.kind for event in told})}, separators=(",", ":"))
                yield f"event: changed\ndata: {data}\n\n".encode()
                pulse.spoke()
            await asyncio.sleep(QUIET_S)
            continue
        if pulse.is_due():
            yield COMMENT
        await broadcast.wait(WAIT_S)


def _is_about(event: Event, wanted: tuple[str, ...]) -> bool:
    if not wanted:
        return True
    names = (event.subject_id, event.payload.get("job_id"), event.payload.get("node_id"), event.payload.get("gpu_uuid"))
    return any(one in names or event.kind.startswith(one) for one in wanted)


def _newest(dependencies: AppDependencies) -> int:
    with dependencies.units.read() as session:
        return newest_position(session)


def _page(dependencies: AppDependencies, principal: Principal, after: int) -> list[Event]:
    tenant_id = None if principal.sees_all_tenants else principal.tenant_id
    with dependencies.units.read() as session:
        return events_after(session, after, limit=PAGE, tenant_id=tenant_id)
