"""A build's code reaches the operator's index alone, and nothing else of the host's network."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from muster.environments.recipe import PackageIndex, Recipe
from tests.environments.wheels import served_index, source_lock
from workers.host.content.index_relay import MOST_CONNECTIONS, IndexRelay, Place, places_of
from workers.host.content.own_network import OwnNetwork, can_be_made

from .environment_case import EnvironmentHost, new_host, one_wheel, printed

NETWORK = Path("/proc/self/ns/net")
BY_SOURCE = Recipe("requirements.txt", allows_source=True)
needs_network = pytest.mark.skipif(
    not can_be_made(), reason="NOT CHECKED: a build has a network of its own only where these tests may make one"
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server of the host that no build may reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def was_reached(listener: socket.socket) -> bool:
    try:
        listener.accept()
    except BlockingIOError:
        return False
    return True


def host_of(tmp_path: Path, index: PackageIndex) -> EnvironmentHost:
    house = tmp_path / "house"
    return replace(new_host(tmp_path / "one", tmp_path / "plane", house), index=index)


def end_of(host: EnvironmentHost, lock: str) -> str:
    """Return why the build of a lock failed."""
    host.run(host.order(host.bundle(lock), recipe=BY_SOURCE))
    end = host.plane.known()["ends"][-1]
    return f"{end['words']}\n{end['log']}"


@needs_network
def test_a_build_by_a_wheelhouse_reaches_no_server_of_the_host(tmp_path: Path, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
    lock = source_lock(tmp_path / "house", code)
    host = host_of(tmp_path, PackageIndex(wheelhouse=str(tmp_path / "house"), source_builds="anywhere"))
    assert "Connection refused" in end_of(host, lock)
    assert not was_reached(listener)


@needs_network
def test_a_source_distribution_is_built_from_an_index_on_loopback(tmp_path: Path) -> None:
    lock = source_lock(tmp_path / "house", "pass")
    with served_index(tmp_path / "index", tmp_path / "house" / "delta-1.0.tar.gz") as (url, asked):
        host = host_of(tmp_path, PackageIndex(url=url, source_builds="anywhere"))
        environment = host.environment(host.bundle(lock), recipe=BY_SOURCE)
        assert printed(environment, "import delta; print(delta.VERSION)") == "1.0"
    assert "/simple/delta/delta-1.0.tar.gz" in asked


@needs_network
def test_the_way_to_the_index_leads_nowhere_else(tmp_path: Path, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    code = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/')"
    lock = source_lock(tmp_path / "house", code)
    with served_index(tmp_path / "index", tmp_path / "house" / "delta-1.0.tar.gz") as (url, _):
        words = end_of(host_of(tmp_path, PackageIndex(url=url, source_builds="anywhere")), lock)
    assert "HTTP Error 403" in words
    assert f"the build asked for 127.0.0.1:{port}, which is neither the index nor in `package_index_hosts`" in words
    assert not was_reached(listener)


@pytest.mark.parametrize(
    ("source_builds", "words"), [("isolated", "without `job_uids`"), ("never", "`source_builds: never`")]
)
def test_a_host_without_users_for_jobs_builds_no_source_distribution_unless_its_operator_allows_it(
    tmp_path: Path, source_builds: str, words: str
) -> None:
    made = tmp_path / "made"
    lock = source_lock(tmp_path / "house", f"open({str(made)!r}, 'w').close()")
    index = PackageIndex(wheelhouse=str(tmp_path / "house"), source_builds=source_builds)  # type: ignore[arg-type]  # one of them
    host = host_of(tmp_path, index)
    assert words in end_of(host, lock)
    assert not made.exists()
    environment = host.environment(host.bundle(one_wheel(tmp_path / "house")))
    assert printed(environment, "import alpha; print(alpha.VERSION)") == "1.0", "wheels run no code"


@needs_network
def test_a_network_of_its_own_has_a_loopback_alone_and_is_left_with_its_descriptor() -> None:
    own = NETWORK.stat().st_ino
    before = len(list(Path("/proc/self/fd").iterdir()))
    with OwnNetwork() as network:
        assert os.fstat(network.descriptor).st_ino != own
        assert NETWORK.stat().st_ino == own, "this process stays where it was"
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        names = ("Host", "Connection", "Proxy-Connection", "X-Own")
        content = " ".join([self.path, *(str(self.headers.get_all(name)) for name in names)]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's signature
        """Say nothing."""


@pytest.fixture
def hello() -> Iterator[Place]:
    server = HTTPServer(("127.0.0.1", 0), _Hello)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Place("127.0.0.1", server.server_address[1])
    server.shutdown()
    thread.join()
    server.server_close()


def answer_of(relay: IndexRelay, *requests: str) -> str:
    """Send requests over one connection, and return all that comes until it is closed."""
    host, _, port = relay.address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        found = b""
        for request in requests:
            client.sendall(request.encode())
            while not found.endswith(b"\r\n\r\n") and (piece := client.recv(65_536)):
                found += piece
        while piece := client.recv(65_536):
            found += piece
    return found.decode()


@pytest.fixture
def relay(hello: Place) -> Iterator[IndexRelay]:
    with socket.create_server(("127.0.0.1", 0)) as way_out, IndexRelay(way_out, {hello}) as relay:
        yield relay


def test_a_tunnel_and_a_plain_request_arrive(relay: IndexRelay, hello: Place) -> None:
    tunnel = answer_of(relay, f"CONNECT {hello} HTTP/1.1\r\n\r\n", "GET /in HTTP/1.0\r\n\r\n")
    assert tunnel.startswith("HTTP/1.1 200")
    assert tunnel.endswith("/in None None None None")
    plain = answer_of(relay, f"GET http://{hello}/a?b=1 HTTP/1.1\r\nProxy-Connection: keep-alive\r\nX-Own: 1\r\n\r\n")
    assert plain.endswith(f"/a?b=1 ['{hello}'] ['close'] None ['1']")


@pytest.mark.parametrize(
    "header",
    ["Host: intranet.example", "X-Own: 1\nHost: intranet.example", "Host : intranet.example", " intranet.example"],
)
def test_a_plain_request_is_for_the_host_of_its_address_whatever_its_headers_are(
    relay: IndexRelay, hello: Place, header: str
) -> None:
    answer = answer_of(relay, f"GET http://{hello}/a HTTP/1.1\r\n{header}\r\n\r\n")
    assert answer.endswith(f"/a ['{hello}'] ['close'] None None")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("CONNECT 127.0.0.1:1 HTTP/1.1", "403"),
        ("CONNECT metadata.example:80 HTTP/1.1", "403"),
        ("GET http://127.0.0.1/ HTTP/1.1", "403"),
        ("GET / HTTP/1.1", "400"),
        ("GET ftp://127.0.0.1/ HTTP/1.1", "400"),
        ("CONNECT 127.0.0.1:none HTTP/1.1", "400"),
        ("nonsense", "400"),
        ("GET\tx http://127.0.0.1/ HTTP/1.1", "400"),
        ("CONNECT 127.0.0.1:1\x1b[31m HTTP/1.1", "400"),
        ("CONNECT index@127.0.0.1:1 HTTP/1.1", "403"),
        ("CONNECT [::1]:1 HTTP/1.1", "403"),
    ],
)
def test_another_place_or_no_request_is_refused(relay: IndexRelay, request_line: str, status: str) -> None:
    assert answer_of(relay, f"{request_line}\r\n\r\n").split()[1] == status


def test_the_first_few_places_that_are_refused_are_kept(relay: IndexRelay) -> None:
    for port in range(1, 9):
        answer_of(relay, f"CONNECT [fd00::1]:{port} HTTP/1.1\r\n\r\n")
    assert [str(place) for place in relay.refused()] == [f"[fd00::1]:{port}" for port in range(1, 6)]


def test_a_relay_ends_while_as_many_connections_are_open_as_it_serves() -> None:
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=MOST_CONNECTIONS))
        way_out = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=MOST_CONNECTIONS))
        place = Place(*server.getsockname())
        with IndexRelay(way_out, {place}):
            for _ in range(MOST_CONNECTIONS):
                client = opened.enter_context(socket.create_connection(way_out.getsockname(), timeout=30))
                client.sendall(f"CONNECT {place} HTTP/1.1\r\n\r\n".encode())
                assert client.recv(12) == b"HTTP/1.1 200"


def test_an_index_that_is_down_is_named(hello: Place) -> None:
    del hello
    with socket.create_server(("127.0.0.1", 0)) as gone:
        place = Place(*gone.getsockname())
    with socket.create_server(("127.0.0.1", 0)) as way_out, IndexRelay(way_out, {place}) as relay:
        assert f"{place} cannot be reached" in answer_of(relay, f"CONNECT {place} HTTP/1.1\r\n\r\n")


def test_places_are_the_index_and_the_hosts_of_its_files() -> None:
    assert places_of("https://pypi.org/simple", ()) == {("pypi.org", 443), ("files.pythonhosted.org", 443)}
    assert places_of("http://Pypi.lan:8080/simple", ("files.lan", "more.lan:81")) == {
        ("pypi.lan", 8080),
        ("files.lan", 443),
        ("more.lan", 81),
    }
    assert places_of(None, ()) == frozenset()
