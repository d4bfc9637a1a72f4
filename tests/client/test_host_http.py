"""A host's requests: connections are kept, an ended one is not used, and faults are sentences."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from muster.client import host_http
from muster.client.host_http import HostHttp
from muster.client.http_rules import InsecureAddressError, Problem, UnreachableError
from muster.ports import free_port
from tests.recorded_server import Answer, problem, serving


@dataclass
class _Kept:
    """``ports``: of the client's connections, by request. ``open``: connections of the server's side."""

    url: str
    ports: list[int] = field(default_factory=list)
    open: list[socket.socket] = field(default_factory=list)

    def end_all(self) -> None:
        for one in self.open:
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def _keeping_server(meeting: threading.Barrier | None = None) -> Iterator[_Kept]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.ports.append(self.client_address[1])
            kept.open.append(self.connection)
            if meeting is not None:
                meeting.wait(60)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's signature
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    kept = _Kept(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def test_a_connection_serves_one_request_after_another() -> None:
    with _keeping_server() as server, closing(HostHttp(server.url, "key")) as http:
        assert [http.post("/one", b"1"), http.post("/two", b"22")] == [b"1", b"22"]
        assert len(set(server.ports)) == 1


def test_a_connection_that_the_server_ended_is_not_used_again() -> None:
    with _keeping_server() as server, closing(HostHttp(server.url, "key")) as http:
        http.post("/one", b"1")
        server.end_all()
        assert http.post("/two", b"2") == b"2"
        assert len(set(server.ports)) == 2


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_http, "KEEP_ALIVE_S", 0.0)
    with _keeping_server() as server, closing(HostHttp(server.url, "key")) as http:
        http.post("/one", b"1")
        http.post("/two", b"2")
        assert len(set(server.ports)) == 2


def test_two_threads_have_a_connection_each() -> None:
    with (
        _keeping_server(threading.Barrier(2)) as server,
        closing(HostHttp(server.url, "key")) as http,
        ThreadPoolExecutor(2) as threads,
    ):
        assert set(threads.map(lambda body: http.post("/", body), (b"1", b"2"))) == {b"1", b"2"}
        assert len(set(server.ports)) == 2


def test_the_request_has_the_address_path_the_key_and_the_body() -> None:
    with (
        serving(lambda _asked, _number: Answer(200, {})) as server,
        closing(HostHttp(f"{server.url}/at/", "k")) as http,
    ):
        assert http.post("/v1/x", b"{}") == b"{}"
    asked = server.requested[0]
    assert (asked.method, asked.path, asked.body) == ("POST", "/at/v1/x", b"{}")
    assert (asked.headers["authorization"], asked.headers["content-type"]) == ("Bearer k", "application/json")


@pytest.mark.parametrize(
    ("answer", "status", "code", "retry_after_s"),
    [
        (problem(409, "stale_fence"), 409, "stale_fence", None),
        (Answer(503, {}, {"Retry-After": "3"}, raw=b"<html>"), 503, "http_503", 3.0),
        (Answer(502, raw=b'"text"'), 502, "http_502", None),
        (Answer(307, {}, {"Location": "http://127.0.0.1:1/"}), 307, "http_307", None),
    ],
)
def test_an_answer_that_refuses_is_a_problem(
    answer: Answer, status: int, code: str, retry_after_s: float | None
) -> None:
    with (
        serving(lambda _asked, _number: answer) as server,
        closing(HostHttp(server.url, "key")) as http,
        pytest.raises(Problem) as found,
    ):
        http.post("/", b"{}")
    assert (found.value.status, found.value.code, found.value.retry_after_s) == (status, code, retry_after_s)
    assert len(server.requested) == 1, "no redirect is followed"


def test_no_server_is_an_error_in_one_sentence() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        closing(HostHttp(url, "key")) as http,
        pytest.raises(UnreachableError, match=f"^{url} does not answer: .*refused"),
    ):
        http.post("/", b"{}")


def test_a_server_that_is_silent_is_left_after_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with closing(HostHttp(url, "key")) as http, pytest.raises(UnreachableError, match="timed out"):
            http.post("/", b"{}", answer_s=0.05)


def test_a_key_does_not_leave_the_machine_in_clear_text() -> None:
    with pytest.raises(InsecureAddressError):
        HostHttp("http://muster.example", "key")
