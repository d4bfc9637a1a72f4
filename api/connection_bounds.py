"""Bounds of what a connection may send, and of how many there are, before a request is whole.

uvicorn's parser on httptools holds a header until it is whole, however large it becomes, and waits for the rest of a
request without end. Here a request that is too large ends with 431 or 413, one that is too slow with 408, and a
connection too many with 429 (of one address) or 503 (in all).
"""

import asyncio
import ipaddress
import json
import math
import resource
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.problems import MEDIA_TYPE, document_of
from muster.domain.errors import (
    HeadersTooLargeError,
    MusterError,
    PayloadTooLargeError,
    RateLimitedError,
    RequestTimeoutError,
    TooManyConnectionsError,
)
from muster.domain.networks import network_of

SWEEP_S: Final = 0.5
"""Period in which connections are checked for requests that are too slow: no timer is set for each of them."""
CLOSING_S: Final = 2.0
SPARE_FILES: Final = 256
"""Open files that connections leave to the database, logs and libraries."""
_NEVER: Final = math.inf
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds. Times in seconds.

    ``header_s``: from a connection's start, or a request's first byte, to the end of its headers. ``body_idle_s``:
    between two pieces of a body; ``body_s``: from the end of its headers to its own. ``message_bytes``: everything of a
    request behind its headers, with the framing of its chunks and their trailers.
    """

    header_bytes: int = 32 << 10
    headers: int = 100
    message_bytes: int = 16 << 20
    header_s: float = 10.0
    body_idle_s: float = 20.0
    body_s: float = 120.0
    connections: int = 32_768
    connections_per_address: int = 4_096


def allowed_connections(wanted: int) -> int:
    """Raise this process's limit of open files if ``wanted`` connections need it, and return how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - SPARE_FILES))


class Connections:
    """The open connections of a process: how many of each address, and until when each may stay as it is.

    ``trusted``: addresses or networks of proxies, which connect for many clients; ``*``: all.
    """

    def __init__(self, bounds: Bounds, trusted: Sequence[str] = ()) -> None:
        self.bounds = bounds
        self._trusts_all = "*" in trusted
        self._trusted = [ipaddress.ip_network(each, strict=False) for each in trusted if each != "*"]
        self._open: set[BoundedProtocol] = set()
        self._by_address: Counter[str] = Counter()
        self._is_sweeping = False

    def add(self, connection: "BoundedProtocol", address: str | None) -> MusterError | None:
        """Count a connection. Return the error to answer with if it is one too many."""
        name = None if address is None or self._is_trusted(address) else network_of(address)
        if len(self._open) >= self.bounds.connections:
            return TooManyConnectionsError("too many connections are open", retry_after_s=1)
        if name is not None:
            if self._by_address[name] >= self.bounds.connections_per_address:
                return RateLimitedError("too many connections from this address are open", retry_after_s=1)
            self._by_address[name] += 1
        connection.counted_as = name
        self._open.add(connection)
        if not self._is_sweeping:
            self._is_sweeping = True
            connection.loop.call_later(SWEEP_S, self._sweep, connection.loop)
        return None

    def remove(self, connection: "BoundedProtocol") -> None:
        if connection not in self._open:
            return
        self._open.discard(connection)
        name = connection.counted_as
        if name is not None:
            self._by_address[name] -= 1
            if not self._by_address[name]:
                del self._by_address[name]

    def _is_trusted(self, address: str) -> bool:
        if self._trusts_all:
            return True
        if not self._trusted:
            return False
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._trusted)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        for connection in [each for each in self._open if each.until_s < now_s]:
            connection.expire()
        self._is_sweeping = bool(self._open)
        if self._open:
            loop.call_later(SWEEP_S, self._sweep, loop)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. ``until_s``: the loop's time at which it ends unless it makes progress."""

    shared: Connections
    """The connections of this process, set by ``bounded``."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.counted_as: str | None = None
        self._is_refused = False
        self._in_headers = False
        self._in_body = False
        self._began_part = False
        self._num_bytes = 0
        self._num_headers = 0
        self._body_ends_s = _NEVER
        self.until_s = self.loop.time() + self.shared.bounds.header_s
        error = self.shared.add(self, self.client[0] if self.client else None)
        if error is not None:
            self._refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._in_body:
            self._wait_for_body()
        self._began_part = False
        super().data_received(data)
        if self._is_refused:
            return
        if not self._began_part:  # a read in which the part begins may hold much of what was before it
            self._num_bytes += len(data)
        if self._in_headers:
            if self._num_bytes > self.shared.bounds.header_bytes:
                self._refuse(self._too_large())
        elif self._in_body:
            if self._num_bytes > self.shared.bounds.message_bytes:
                most = self.shared.bounds.message_bytes
                self._refuse(PayloadTooLargeError("the body and its framing are too large", limit_bytes=most))
        elif self.until_s == _NEVER and self.timeout_keep_alive_task is None and not self._is_answering():
            self.until_s = self.loop.time() + self.shared.bounds.header_s  # bytes that begin no request

    def on_message_begin(self) -> None:
        if self._is_refused:  # the parser goes through all of a read
            return
        super().on_message_begin()
        self._in_headers, self._began_part, self._num_bytes, self._num_headers = True, True, 0, 0
        self.until_s = self.loop.time() + self.shared.bounds.header_s

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        if self._num_headers <= self.shared.bounds.headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_refused:
            return
        bounds = self.shared.bounds
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self._num_headers > bounds.headers or size > bounds.header_bytes:
            self._refuse(self._too_large())
            return
        self._in_headers, self._in_body, self._began_part, self._num_bytes = False, True, True, 0
        self._begin_body()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self.until_s = _NEVER  # from here on the answer is awaited, and then uvicorn's keep-alive time runs
        if not self._is_refused:
            super().on_message_complete()

    def expire(self) -> None:
        """End a request that is too slow, or a connection without one.

        While its bytes are not read here, or the client waits for our leave to send its body, its time begins again.
        """
        if self._in_body:
            if self.flow.read_paused or self.cycle.waiting_for_100_continue:
                self._begin_body()
            else:
                self._refuse(RequestTimeoutError("the request's body did not arrive in time"))
        elif self._in_headers:
            if self.flow.read_paused:
                self.until_s = self.loop.time() + self.shared.bounds.header_s
            else:
                self._refuse(RequestTimeoutError("the request's headers did not arrive in time"))
        else:  # as browsers connect before they have a request
            self.until_s = _NEVER
            self.transport.close()

    def _begin_body(self) -> None:
        self._body_ends_s = self.loop.time() + self.shared.bounds.body_s
        self._wait_for_body()

    def _wait_for_body(self) -> None:
        self.until_s = min(self.loop.time() + self.shared.bounds.body_idle_s, self._body_ends_s)

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type leaves out that there may be none yet
        return cycle is not None and not cycle.response_complete

    def _too_large(self) -> HeadersTooLargeError:
        bounds = self.shared.bounds
        words = f"more than {bounds.headers} headers, or {bounds.header_bytes} bytes of them with the address"
        return HeadersTooLargeError(words, limit_bytes=bounds.header_bytes)

    def _refuse(self, error: MusterError) -> None:
        """Answer with a problem, unless the client would read it as the answer to another request, and close.

        Nothing more of the connection is read. A client that does not read the answer either has ``CLOSING_S`` for it.
        """
        self._is_refused = True
        self.until_s = _NEVER
        _log.info("connection_refused", code=error.code, detail=error.detail, address=self.counted_as)
        is_of_this_request = self._in_body and not self.cycle.response_started and not self.pipeline
        if is_of_this_request or not self._is_answering():
            self.transport.write(_answer(error))
        self.transport.close()
        self.loop.call_later(CLOSING_S, self.transport.abort)


def bounded(connections: Connections) -> type[asyncio.Protocol]:
    """Return the class of the connections that are counted together."""
    return type("Bounded", (BoundedProtocol,), {"shared": connections})


def _answer(error: MusterError) -> bytes:
    body = json.dumps(document_of(error, instance="", request_id=None)).encode()
    retry = "" if error.retry_after_s is None else f"Retry-After: {error.retry_after_s}\r\n"
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n{retry}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
