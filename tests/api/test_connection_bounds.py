"""Bounds of connections, by raw sockets against a real server: what is too large, too slow or too many."""

import asyncio
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest
import uvicorn

from api.connection_bounds import SPARE_FILES, BoundedProtocol, Bounds, Connections, allowed_connections, bounded
from muster.ports import free_port
from tests.waiting import wait_until

PATIENT: Final = Bounds(header_bytes=4096, headers=20, message_bytes=100_000)
"""Times that no test reaches."""
HASTY: Final = Bounds(header_s=0.2, body_idle_s=0.2, body_s=0.6)
WHOLE: Final = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
POST: Final = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n"


@dataclass(frozen=True)
class Served:
    """A server. ``may_read`` lets the application read bodies."""

    port: int
    may_read: threading.Event
    paths: list[str]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextmanager
def serving(bounds: Bounds, trusted: tuple[str, ...] = ()) -> Iterator[Served]:
    port, may_read, paths = free_port(), threading.Event(), list[str]()
    may_read.set()

    async def echo(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        if scope["type"] != "http":
            return
        paths.append(scope["path"])
        await asyncio.get_running_loop().run_in_executor(None, may_read.wait)
        body, is_more = b"", True
        while is_more:
            message = await receive()
            body, is_more = body + message.get("body", b""), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    http = bounded(Connections(bounds, trusted))
    server = uvicorn.Server(uvicorn.Config(echo, port=port, http=http, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, pause_s=0.01)
    try:
        yield Served(port, may_read, paths)
    finally:
        may_read.set()
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def patient() -> Iterator[Served]:
    with serving(PATIENT) as served:
        yield served


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    with serving(HASTY) as served:
        yield served


def answer_to(connection: socket.socket, *pieces: bytes) -> tuple[int, dict[str, Any]]:
    """Send, read until the server closes, and return the status and the problem."""
    with suppress(BrokenPipeError, ConnectionResetError):
        for piece in pieces:
            connection.sendall(piece)
    return read_answer(connection)


def read_answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    found = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)


# --- too large


@pytest.mark.parametrize(
    "request_of",
    [
        b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 900_000,
        b"GET /" + b"y" * 900_000,
        b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 5000 + b"\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 30 + b"\r\n",
    ],
    ids=["a header without end", "an address without end", "a whole header", "many headers"],
)
def test_a_request_that_is_too_large_is_refused_before_it_is_whole(patient: Served, request_of: bytes) -> None:
    with patient.connect() as connection:
        status, problem = answer_to(connection, request_of)
    assert (status, problem["code"]) == (431, "headers_too_large")


def test_a_trailer_without_end_is_too_large_a_body(patient: Served) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: "
    with patient.connect() as connection:
        status, problem = answer_to(connection, head + b"y" * 900_000)
    assert (status, problem["code"]) == (413, "payload_too_large")


def test_what_follows_a_refused_request_in_one_piece_is_not_carried_out(patient: Served) -> None:
    refused = b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 30 + b"\r\n"
    num_before = len(patient.paths)
    with patient.connect() as connection:
        status, _ = answer_to(connection, refused + WHOLE.replace(b"/x", b"/then"))
    assert status == 431
    assert patient.paths[num_before:] == []


def test_a_refusal_is_not_read_as_the_answer_to_the_request_before(patient: Served) -> None:
    patient.may_read.clear()
    refused = b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 30 + b"\r\n"
    with patient.connect() as connection:
        connection.sendall(WHOLE + refused)
        found = connection.recv(4096)
    patient.may_read.set()
    assert found == b"", "the connection ends"


def test_of_a_header_of_a_hundred_megabytes_little_is_taken(patient: Served) -> None:
    """What the kernel buffers counts as taken here, and is most of it."""
    piece, num_sent = b"y" * 65_536, 0
    with patient.connect() as connection:
        connection.sendall(b"GET /x HTTP/1.1\r\nX: ")
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(1600):
                connection.sendall(piece)
                num_sent += len(piece)
    assert num_sent < 20 << 20


def test_many_requests_in_one_piece_are_no_large_header(patient: Served) -> None:
    """A client may send requests without waiting for their answers."""
    with patient.connect() as connection:
        connection.sendall(WHOLE * 2000 + WHOLE[:20])
        connection.sendall(WHOLE[20:])
        found = b""
        while found.count(b"HTTP/1.1 200") < 2001 and (piece := connection.recv(1 << 20)):
            found += piece
    assert found.count(b"HTTP/1.1 200") == 2001


def test_requests_one_after_the_other_are_counted_each_by_itself(patient: Served) -> None:
    with patient.connect() as connection:
        for _ in range(5):
            connection.sendall(WHOLE)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            connection.sendall(b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 3000 + b"\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


# --- too slow


@pytest.mark.parametrize("begun", [b"", b"\r\n"])
def test_a_connection_without_a_request_ends_without_an_answer(hasty: Served, begun: bytes) -> None:
    """As browsers open some ahead: they would show it as the answer to their next request."""
    with hasty.connect() as connection:
        connection.sendall(begun)
        assert connection.recv(4096) == b""


def test_headers_that_do_not_arrive_end_the_connection(hasty: Served) -> None:
    with hasty.connect() as connection:
        status, problem = answer_to(connection, b"GET /x HTTP/1.1\r\nHost: a\r\nX: ")
    assert (status, problem["detail"]) == (408, "the request's headers did not arrive in time")


def test_bytes_that_begin_no_request_keep_no_connection_open(hasty: Served) -> None:
    with hasty.connect() as connection:
        connection.sendall(WHOLE)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(b"\r\n")
        assert connection.recv(4096) == b""


def test_a_body_that_stops_ends_the_request(hasty: Served) -> None:
    with hasty.connect() as connection:
        status, problem = answer_to(connection, POST, b"abc")
    assert (status, problem["detail"]) == (408, "the request's body did not arrive in time")


def test_a_body_that_trickles_ends_with_the_time_for_all_of_it(hasty: Served) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
    num_sent = 0
    with hasty.connect() as connection:
        connection.sendall(head)
        while num_sent < 1000 and not select.select([connection], [], [], 0.05)[0]:
            connection.sendall(b"x")
            num_sent += 1
        status, _ = read_answer(connection)
    assert status == 408
    assert num_sent < 1000


def test_a_body_that_is_not_read_here_is_not_too_slow(hasty: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    expired: list[BoundedProtocol] = []
    expire = BoundedProtocol.expire

    def expire_and_count(self: BoundedProtocol) -> None:
        expired.append(self)
        expire(self)

    monkeypatch.setattr(BoundedProtocol, "expire", expire_and_count)
    size = 400_000  # more than is read before the application asks for it
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size
    hasty.may_read.clear()
    with hasty.connect() as connection:
        sending = threading.Thread(target=connection.sendall, args=(head + b"x" * size,), daemon=True)
        sending.start()
        wait_until(lambda: len(expired) == 2)
        hasty.may_read.set()
        found = b""
        while piece := connection.recv(1 << 20):
            found += piece
        sending.join(60)
    assert found.startswith(b"HTTP/1.1 200")
    assert found.endswith(b"x" * 1000)


# --- too many


def test_one_address_holds_so_many_connections_and_frees_them() -> None:
    with serving(Bounds(connections=100, connections_per_address=3)) as served:
        held = [served.connect() for _ in range(3)]
        for connection in held:
            connection.sendall(b"GET /x HTTP/1.1\r\n")
        with served.connect() as connection:
            status, problem = read_answer(connection)
        assert (status, problem["code"]) == (429, "rate_limited")
        held.pop().close()
        until_served(served)
        for connection in held:
            connection.close()


def until_served(served: Served) -> None:
    """A closed connection is no more counted once the server has read its end."""
    for _ in range(1000):
        with served.connect() as connection, suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(WHOLE)
            if connection.recv(4096).startswith(b"HTTP/1.1 200"):
                return
    raise AssertionError("the place was never free again")


def test_of_all_addresses_there_are_so_many_too() -> None:
    with serving(Bounds(connections=2), trusted=("127.0.0.0/8",)) as served:
        held = [served.connect() for _ in range(2)]
        with served.connect() as connection:
            status, problem = read_answer(connection)
        assert (status, problem["code"], problem["detail"]) == (
            503,
            "too_many_connections",
            "too many connections are open",
        )
        for connection in held:
            connection.close()


@pytest.mark.parametrize("trusted", ["*", "127.0.0.1", "127.0.0.0/8"])
def test_a_proxy_connects_for_many_clients(trusted: str) -> None:
    with serving(Bounds(connections=100, connections_per_address=1), (trusted,)) as served:
        held = [served.connect() for _ in range(3)]
        for connection in held:
            connection.sendall(WHOLE)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            connection.close()


def test_open_files_bound_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr("api.connection_bounds.resource.getrlimit", lambda _: limits[0])
    monkeypatch.setattr("api.connection_bounds.resource.setrlimit", lambda _, pair: limits.__setitem__(0, pair))
    assert allowed_connections(100_000) == 4096 - SPARE_FILES
    assert limits == [(4096, 4096)]
    limits[0] = (1024, 1_000_000)
    assert allowed_connections(2000) == 2000
    assert limits == [(2000 + SPARE_FILES, 1_000_000)], "no more than is needed"
