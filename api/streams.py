"""Server-sent events: one listener a process wakes every stream; a stream holds no thread and no connection."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar

import structlog
from fastapi import Header, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.places import StreamPlaces
from control.core.unit_of_work import UnitOfWorkFactory
from muster.domain.errors import UnavailableError
from muster.domain.principals import Principal

HEARTBEAT_S: Final = 15.0
POLL_ANYWAY_S: Final = 1.0
MEDIA_TYPE: Final = "text/event-stream"
_log = structlog.get_logger(__name__)


LastEventId = Annotated[str | None, Header(max_length=32)]
_MOST: Final = 2**63 - 1
Otherwise = TypeVar("Otherwise")


def position_in(last_event_id: str | None, otherwise: Otherwise) -> int | Otherwise:
    """Return the position that a reconnecting client has read; ``otherwise`` where the header is none that we sent."""
    if last_event_id is None or not last_event_id.isascii() or not last_event_id.isdigit():
        return otherwise
    return min(int(last_event_id), _MOST)


class Broadcast:
    """Wakes every waiting stream when events have got positions. Starts its thread with the first waiter."""

    def __init__(self, units: UnitOfWorkFactory) -> None:
        self._units = units
        self._waiting: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    async def wait(self, timeout_s: float) -> None:
        """Wait until there is something new, or ``timeout_s`` have passed."""
        self._ensure_listening(asyncio.get_running_loop())
        woken = asyncio.Event()
        self._waiting.add(woken)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), timeout_s)
        finally:
            self._waiting.discard(woken)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2)

    def _ensure_listening(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._listen, name="sequenced-events", daemon=True)
            self._thread.start()

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                with self._units.listen("muster_sequenced") as wakeups:
                    while not self._stop.is_set():
                        if wakeups.wait(POLL_ANYWAY_S):
                            self._wake()
            except UnavailableError as error:
                _log.warning("listener_pauses", fault=error.detail)
                self._stop.wait(POLL_ANYWAY_S)

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_here)

    def _wake_here(self) -> None:
        for woken in tuple(self._waiting):
            woken.set()


def frame(data: Mapping[str, Any], *, event: str | None = None, position: int | None = None) -> bytes:
    """Return one event. JSON holds no raw line break, so no text of a tenant can end the frame."""
    lines = []
    if position is not None:
        lines.append(f"id: {position}")
    if event is not None:
        lines.append(f"event: {event}")
    lines.append(f"data: {json.dumps(data, separators=(',', ':'))}")
    return ("\n".join(lines) + "\n\n").encode()


COMMENT: Final = b": still here\n\n"


class EventStream(StreamingResponse):
    """A stream of events. ``leave`` is called when it ends."""

    media_type = MEDIA_TYPE
    leave: Callable[[], None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self.leave is not None:
                self.leave()


def sse(request: Request, principal: Principal, frames: AsyncIterator[bytes]) -> EventStream:
    """Return the stream. Raises RateLimitedError: the caller or its tenant has too many of them open."""
    places: StreamPlaces = request.app.state.stream_places
    leave = places.take(principal)
    stream = EventStream(frames, headers={"X-Accel-Buffering": "no"})
    stream.leave = leave
    return stream


def streaming(words: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's description of a route that answers with a stream."""
    return {200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "description": words}}}}}


class Pulse:
    """A timer for comments in a silent stream, so that proxies and clients know it lives."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()

    def spoke(self) -> None:
        self._last = self._clock()

    def is_due(self) -> bool:
        if self._clock() - self._last < HEARTBEAT_S:
            return False
        self._last = self._clock()
        return True
