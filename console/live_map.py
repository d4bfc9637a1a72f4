"""The map's bytes, and its changes as server-sent events: read once for all viewers of a map.

Steady traffic is kept under a limit: a tick sends urgent changes first, and no more readings than fit.
"""

import asyncio
import base64
import contextlib
import json
import secrets
import struct
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

import numpy as np
from starlette.concurrency import run_in_threadpool

from api.streams import COMMENT, Pulse
from control.core.unit_of_work import UnitOfWorkFactory
from control.core.visibility import only_tenant_of
from control.fleet.fleet_map import COLUMNS, CONTACTS, STANDINGS, FleetMap, changed_cells, fleet_map, with_cells
from muster.domain.errors import MusterError
from muster.domain.ids import TenantId
from muster.domain.principals import Principal

TICK_S: Final = 1.0
READ_SHARE: Final = 0.1
"""A read that takes longer than this share of a tick stretches it: a huge fleet is read less often."""
MAX_CELLS: Final = 350
"""A cell is sent as 4 + 6 bytes, a third more in base64: under 5 KB a second."""
UNWATCHED_S: Final = 20.0
"""Time for which a map without viewers is kept current: between a page and its stream, between two pages."""
REMEMBERED: Final = 60
AGAIN: Final = b"event: anew\ndata: {}\n\n"
_MAGIC: Final = b"MAP1"


def encoded(fleet: FleetMap, mark: str) -> bytes:
    """Return ``MAP1``, the length of the head, the head as JSON, then the columns one after the other, a byte a GPU."""
    head = json.dumps({**_head(fleet), "mark": mark}, separators=(",", ":")).encode()
    return _MAGIC + struct.pack("<I", len(head)) + head + fleet.cells.tobytes()


def _head(fleet: FleetMap) -> dict[str, Any]:
    return {
        "columns": COLUMNS,
        "standings": [standing.value for standing in STANDINGS],
        "contacts": [contact.value for contact in CONTACTS],
        "tenants": [name for _, name in fleet.tenants],
        "nodes": [[node.name, node.rack, node.num_gpus, node.contact, int(node.is_cordoned)] for node in fleet.nodes],
    }


def delta(before: FleetMap, after: FleetMap) -> tuple[bytes, FleetMap]:
    """Return the event that brings a viewer of ``before`` nearer to ``after``, and the map that it then sees.

    The event is empty where there is no change.
    """
    if before.layout != after.layout:
        return AGAIN, after
    changed = changed_cells(before, after, MAX_CELLS)
    nodes = [
        [number, new.contact, int(new.is_cordoned)]
        for number, (old, new) in enumerate(zip(before.nodes, after.nodes, strict=True))
        if (old.contact, old.is_cordoned) != (new.contact, new.is_cordoned)
    ]
    if not len(changed) and not nodes:
        return b"", before
    body = changed.astype("<u4").tobytes() + np.ascontiguousarray(after.cells[:, changed]).tobytes()
    data = {"n": len(changed), "nodes": nodes, "cells": base64.b64encode(body).decode("ascii")}
    return f"event: cells\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode(), with_cells(
        before, after, changed
    )


class _Watched:
    """One map with viewers: the whole fleet's, or one tenant's. ``serial`` numbers its changes."""

    def __init__(self, fleet: FleetMap) -> None:
        self.fleet = fleet
        self.epoch = secrets.token_hex(4)
        self.serial = 0
        self.recent: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED)
        self.listeners: set[asyncio.Queue[bytes]] = set()
        self.task: asyncio.Task[None] | None = None

    @property
    def mark(self) -> str:
        """Position of a viewer of ``fleet``; a mark of another process or of long ago is unknown."""
        return f"{self.epoch}-{self.serial}"

    def since(self, mark: str) -> list[bytes] | None:
        """Return the events after ``mark``; None where these are not kept any more."""
        epoch, _, serial = mark.partition("-")
        if epoch != self.epoch or not serial.isascii() or not serial.isdigit() or len(serial) > 18:
            return None
        missing = self.serial - int(serial)
        if missing < 0 or missing > len(self.recent):
            return None
        return [event for number, event in self.recent if number > int(serial)]

    def report(self, event: bytes) -> None:
        self.serial += 1
        numbered = f"id: {self.mark}\n".encode() + event
        self.recent.append((self.serial, numbered))
        for queue in self.listeners:
            if queue.full():  # too slow to follow: it has to start again
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(AGAIN)
            else:
                queue.put_nowait(numbered)


class LiveMaps:
    """Maps with viewers. Each is read by one task as long as it has viewers; all of them receive the same bytes."""

    def __init__(self, units: UnitOfWorkFactory) -> None:
        self._units = units
        self._watched: dict[TenantId | None, _Watched] = {}

    async def current(self, principal: Principal) -> tuple[FleetMap, str]:
        """Return the map as this process last read it, and the mark from which a stream continues."""
        watched = await self._watch(principal)
        return watched.fleet, watched.mark

    async def stream(self, principal: Principal, mark: str) -> AsyncIterator[bytes]:
        """Yield the changes after ``mark``, or an event that the map must be fetched again."""
        watched = await self._watch(principal)
        queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=REMEMBERED)
        missed = watched.since(mark)
        watched.listeners.add(queue)
        pulse = Pulse(asyncio.get_running_loop().time)
        try:
            yield b"".join([AGAIN] if missed is None else [b": go on\n\n", *missed])
            while True:
                with contextlib.suppress(TimeoutError):
                    yield await asyncio.wait_for(queue.get(), 5.0)
                    pulse.spoke()
                if pulse.is_due():
                    yield COMMENT
        finally:
            watched.listeners.discard(queue)

    async def _watch(self, principal: Principal) -> _Watched:
        key = only_tenant_of(principal)
        if key not in self._watched:
            fleet = await run_in_threadpool(fleet_map, self._units, principal)
            if key not in self._watched:
                watched = self._watched[key] = _Watched(fleet)
                watched.task = asyncio.create_task(self._follow(key, watched, principal))
        return self._watched[key]

    async def _follow(self, key: TenantId | None, watched: _Watched, principal: Principal) -> None:
        loop = asyncio.get_running_loop()
        pause_s, last_seen_s = TICK_S, loop.time()
        while loop.time() - last_seen_s < UNWATCHED_S:
            await asyncio.sleep(pause_s)
            if watched.listeners:
                last_seen_s = loop.time()
            began_s = loop.time()
            try:
                fresh = await run_in_threadpool(fleet_map, self._units, principal)
            except MusterError:
                continue  # while the database does not answer, the map stands still, and its page shows its age
            event, watched.fleet = delta(watched.fleet, fresh)
            pause_s = max(TICK_S, (loop.time() - began_s) / READ_SHARE)
            if event:
                watched.report(event)
        del self._watched[key]
