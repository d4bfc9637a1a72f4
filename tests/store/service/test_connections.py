"""Clients that are slow, silent or too many: each is ended in its time, and the others are served meanwhile."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from muster.store.faults import StoreSlowError, fault_of
from muster.store.service import server, stream
from tests.store.service.running import running
from tests.store.service.test_refusals import head_of_request
from tests.store.stores import Store, chunk_of, now
from tests.waiting import wait_until

CONTENT = bytes(4 << 20)
KEY = chunk_of(CONTENT)


@pytest.fixture(name="short_times", autouse=True)
def fixture_short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEAD_S", 0.5)
    monkeypatch.setattr(stream, "QUIET_S", 0.5)
    monkeypatch.setattr(stream, "LEAST_BYTES_PER_S", 8 << 20)
    monkeypatch.setattr(server, "SWEEP_S", 0.05)


@contextlib.contextmanager
def connected(store: Store) -> Iterator[socket.socket]:
    host, port = urlsplit(store.url).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        yield line


def dripping(line: socket.socket, content: bytes) -> int:
    """Send a byte now and then, until the other side has ended the connection. Return how many."""
    pause = threading.Event()
    for number in range(len(content)):
        try:
            line.sendall(content[number : number + 1])
        except OSError:
            return number
        pause.wait(0.02)
    return len(content)


def test_a_head_that_comes_byte_by_byte_is_ended(tmp_path: Path) -> None:
    with running(tmp_path) as store, connected(store) as line:
        assert dripping(line, b"GET / HTTP/1.1\r\nhost: " + b"a" * 2000) < 2000


def test_a_body_that_comes_byte_by_byte_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as store, connected(store) as line:
        line.sendall(head_of_request(store, store.upload_request(KEY, CONTENT)))
        assert dripping(line, b"0" * 2000) < 2000
        wait_until(lambda: not list((tmp_path / "store/drafts").iterdir()))
        assert store.get(KEY).status_code == 404


def test_a_silent_client_is_ended(tmp_path: Path) -> None:
    with running(tmp_path) as store, connected(store) as silent, connected(store) as in_body:
        in_body.sendall(head_of_request(store, store.upload_request(KEY, CONTENT)) + b"0")
        assert silent.recv(10) == b""
        assert in_body.recv(10) == b""


def test_a_client_that_does_not_read_its_download_is_ended(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        store.put(KEY, CONTENT)
        with connected(store) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.sendall(head_of_request(store, store.objects().download(KEY, now())))
            before = threading.active_count()
            wait_until(lambda: threading.active_count() < before)


def test_a_connection_that_waits_is_closed_for_a_new_one(tmp_path: Path) -> None:
    with running(tmp_path, connections=2) as store, connected(store) as oldest, connected(store) as other:
        for line in (oldest, other):
            line.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert line.recv(4096).endswith(b"ok\n")
        assert store.put(KEY, CONTENT).status_code == 200
        assert oldest.recv(10) == b""


def test_where_all_connections_work_one_more_is_refused_in_a_way_that_is_repeated(tmp_path: Path) -> None:
    with running(tmp_path, connections=1) as store, connected(store) as busy:
        busy.sendall(head_of_request(store, store.upload_request(KEY, CONTENT)) + CONTENT[:100_000])
        wait_until(lambda: bool(list((tmp_path / "store/drafts").iterdir())))
        answer = store.client.get(f"{store.url}/healthz")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert isinstance(fault_of(answer.status_code, answer.content), StoreSlowError)
        busy.sendall(CONTENT[100_000:])
        assert busy.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_many_uploads_at_once_take_a_bounded_memory(tmp_path: Path) -> None:
    """Eight connections that each send almost 4 MiB: pieces are written as they come, and no body is held."""
    import tracemalloc  # noqa: PLC0415

    with running(tmp_path) as store:
        requests = [store.upload_request(chunk_of(CONTENT[:-at]), CONTENT[:-at]) for at in range(1, 9)]
        bodies = [memoryview(CONTENT)[:-at] for at in range(1, 9)]

        def put(number: int) -> None:
            with connected(store) as line:
                line.sendall(head_of_request(store, requests[number]))
                line.sendall(bodies[number])
                assert line.recv(4096).startswith(b"HTTP/1.1 200 ")

        tracemalloc.start()
        try:
            threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 8 * (2 * stream.PIECE_BYTES)
        assert len(list(store.objects().list(""))) == 8


def test_a_kept_connection_takes_many_requests(tmp_path: Path) -> None:
    with running(tmp_path, connections=1) as store, httpx.Client(trust_env=False) as client:
        for number in range(20):
            content = bytes([number])
            request = store.upload_request(chunk_of(content), content)
            assert client.put(request.url, headers=dict(request.headers), content=content).status_code == 200
