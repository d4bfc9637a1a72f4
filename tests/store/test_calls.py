"""Calls of keepers to a store that is slow, gone, full or no store: a typed error in bounded time, with what to do."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from muster.ports import free_port
from muster.settings import load_settings
from muster.store import calls
from muster.store.faults import (
    ObjectGoneError,
    StoreError,
    StoreFullError,
    StoreRefusedError,
    StoreSlowError,
    StoreWrongError,
    fault_of,
)
from muster.store.key_file import make_key_file
from muster.store.objects import ObjectStore

ENTRY = b"<Contents><Key>a</Key><Size>1</Size><LastModified>%s</LastModified></Contents>"
PAGE = b"<ListBucketResult>" + ENTRY + b"%s</ListBucketResult>"


def http(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does with each connection what ``serve`` does, once it has a request."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = []

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_ones.append(connection)
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    def one(connection: socket.socket) -> None:
        try:
            serve(connection)
        except OSError:
            return

    threading.Thread(target=run, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in open_ones:
            connection.close()


def answering(*answers: bytes) -> Callable[[socket.socket], None]:
    """Each request of a connection gets the next answer; after the last one the connection ends."""

    def serve(connection: socket.socket) -> None:
        for answer in answers:
            if not connection.recv(65_536):
                return
            connection.sendall(answer)
        connection.close()

    return serve


def dripping(connection: socket.socket) -> None:
    connection.recv(65_536)
    pause = threading.Event()
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000:
        connection.sendall(bytes([byte]))
        pause.wait(0.02)


def silent(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


@pytest.fixture(name="short_times", autouse=True)
def fixture_short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls.Line.__init__, "__kwdefaults__", {"call_s": 0.7, "quiet_s": 0.4})


def store_at(folder: Path, url: str) -> ObjectStore:
    make_key_file(folder / "store.key")
    made = ObjectStore.from_settings(
        load_settings({"MUSTER_STORE_URL": url, "MUSTER_STORE_KEY_FILE": str(folder / "store.key")})
    )
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("serve", "kind", "words"),
    [
        (silent, StoreSlowError, "does not answer: timed out"),
        (dripping, StoreSlowError, "it took more than 0.7 s"),
        (answering(), StoreSlowError, "does not answer: "),
        (answering(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), StoreWrongError, "no answer of HTTP"),
        (
            answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"),
            StoreSlowError,
            "does not answer: IncompleteRead",
        ),
        (answering(http(b"x" * (calls.MAX_ANSWER_BYTES + 1))), StoreWrongError, "more than 8,388,608 bytes"),
        (answering(http(b"<html>")), StoreWrongError, "listing cannot be read"),
        (answering(http(b"<html/>")), StoreWrongError, "answers a listing with <html>"),
        (answering(http(PAGE % (b"yesterday", b""))), StoreWrongError, "listing cannot be read"),
        (answering(http(b"", 500)), StoreSlowError, "answers 500"),
        (answering(http(b"<Error><Code>SlowDown</Code></Error>", 503)), StoreSlowError, "answers 503: SlowDown"),
        (answering(http(b"<Error><Code>XMinioStorageFull</Code></Error>", 507)), StoreFullError, "XMinioStorageFull"),
        (answering(http(b"<Error><Code>AccessDenied</Code></Error>", 403)), StoreRefusedError, "AccessDenied"),
        (answering(http(b"", 301)), StoreWrongError, "answers 301"),
    ],
)
def test_a_store_that_does_not_work_gives_an_error_of_its_kind(
    tmp_path: Path, serve: Callable[[socket.socket], None], kind: type[StoreError], words: str
) -> None:
    with server(serve) as url, pytest.raises(kind, match=words) as caught:
        store_at(tmp_path, url).check()
    assert caught.value.suggestion


def test_a_store_that_does_not_listen_is_slow(tmp_path: Path) -> None:
    with pytest.raises(StoreSlowError, match=r"does not answer: .*refused"):
        store_at(tmp_path, f"http://127.0.0.1:{free_port()}").head("a")


def test_a_connection_that_the_store_closed_between_two_calls_is_opened_again(tmp_path: Path) -> None:
    gone = b"HTTP/1.1 204 X\r\n\r\n"
    with server(answering(gone)) as url:
        store_at(tmp_path, url).delete(["a", "b", "c"])


def test_a_deletion_that_is_refused_is_an_error(tmp_path: Path) -> None:
    refused = http(b"<Error><Code>AccessDenied</Code><Message>no &amp; never\n</Message></Error>", 403)
    with server(answering(refused)) as url, pytest.raises(StoreRefusedError, match=r"AccessDenied \(no & never\)"):
        store_at(tmp_path, url).delete(["a"])


def test_a_page_that_names_no_next_one_ends_the_list(tmp_path: Path) -> None:
    page = http(PAGE % (b"2026-11-28T10:00:00.000Z", b"<IsTruncated>true</IsTruncated>"))
    with server(answering(page)) as url:
        (found,) = store_at(tmp_path, url).list("")
    assert found == ("a", 1, datetime(2026, 11, 28, 10, tzinfo=UTC))


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", ObjectGoneError),
        (404, "", ObjectGoneError),
        (404, "NoSuchBucket", StoreRefusedError),
        (507, "", StoreFullError),
        (403, "QuotaExceeded", StoreFullError),
        (400, "BadDigest", StoreWrongError),
        (429, "", StoreSlowError),
        (418, "", StoreWrongError),
    ],
)
def test_clients_learn_from_an_answer_what_to_do(status: int, code: str, kind: type[StoreError]) -> None:
    assert type(fault_of(status, f"<Error><Code>{code}</Code></Error>".encode())) is kind
    assert type(fault_of(status, b"\xff" * 100_000)) in {kind, fault_of(status, b"").__class__}
