"""Chunks over HTTP: each once, by connections that stay open, and checked before it counts."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from muster.content.manifest import digest_of
from muster.domain.stored_content import FolderKind
from muster.wire.content import Download
from workers.host.content import downloads
from workers.host.content.downloads import NUM_LINES, Downloads
from workers.host.content.faults import BrokenBundleError, StoreError

CHUNKS = {digest_of(content): content for content in (b"%d" % number * 100 for number in range(1_200))}
Reply = Callable[[str, int], tuple[int, bytes]]


@dataclass
class Served:
    """``requested``: how often each chunk was requested; ``ports``: the clients' ports, one for each connection."""

    url: str = ""
    requested: dict[str, int] = field(default_factory=dict)
    ports: set[int] = field(default_factory=set)
    signed: list[int] = field(default_factory=list)
    saved: dict[str, bytes] = field(default_factory=dict)

    def sign(self, digests: Sequence[str]) -> list[Download]:
        self.signed.append(len(digests))
        return [Download(url=f"{self.url}/{digest}?signature={len(self.signed)}") for digest in digests]

    def fetch(self) -> list[str]:
        """Fetch all; return the failures that were tried again."""
        failures: list[str] = []
        given = Downloads(self.sign, failures.append, None, FolderKind.ENVIRONMENT)
        given.fetch({one: len(CHUNKS[one]) for one in CHUNKS}, self.writing)
        return failures

    @contextmanager
    def writing(self, digest: str) -> Iterator[Callable[[bytes | memoryview], None]]:
        content = bytearray()
        try:
            yield content.extend
        finally:
            assert len(content) <= len(CHUNKS[digest]), "the next chunk's bytes would be overwritten"
        assert digest not in self.saved
        self.saved[digest] = bytes(content)


@contextmanager
def serving(reply: Reply) -> Iterator[Served]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # an answer in one packet, as a store sends it

        def do_GET(self) -> None:
            digest = self.path[1:65]
            with lock:
                found.ports.add(self.client_address[1])
                found.requested[digest] = found.requested.get(digest, 0) + 1
            status, content = reply(digest, found.requested[digest])
            self.send_response(status)
            stated_bytes = max(len(CHUNKS[digest]), len(content)) if status == 200 else len(content)
            self.send_header("Content-Length", str(stated_bytes))
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = len(content) != len(CHUNKS[digest])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's signature
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Served(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "FIRST_PAUSE_S", 0.001)


def test_each_chunk_is_requested_once_over_few_connections() -> None:
    with serving(lambda digest, _: (200, CHUNKS[digest])) as store:
        assert store.fetch() == []
    assert store.saved == CHUNKS
    assert set(store.requested.values()) == {1}
    assert store.signed == [500, 500, 200]
    assert len(store.ports) <= 3 * NUM_LINES, "a connection each batch and thread"


FIRST = next(iter(CHUNKS))


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (500, b"<Error><Code>InternalError</Code></Error>", "500: InternalError"),
        (503, b"", "503"),
        (200, CHUNKS[FIRST][:50], "does not answer"),
        (200, b"X" * len(CHUNKS[FIRST]), "arrived with other bytes"),
        (200, CHUNKS[FIRST] + b"and more", "arrived with other bytes"),
    ],
)
def test_what_passes_is_tried_again_and_nothing_wrong_is_saved(status: int, content: bytes, words: str) -> None:
    def reply(digest: str, number: int) -> tuple[int, bytes]:
        return (status, content) if digest == FIRST and number <= 2 else (200, CHUNKS[digest])

    with serving(reply) as store:
        failures = store.fetch()
    assert store.saved == CHUNKS
    assert store.requested[FIRST] == 3
    assert len(failures) == 2
    assert all(words in each for each in failures), failures


def test_an_address_that_has_expired_is_signed_again() -> None:
    def reply(digest: str, number: int) -> tuple[int, bytes]:
        is_late = int(digest, 16) % 3 == 0 and number == 1
        return (403, b"<Error><Code>AccessDenied</Code></Error>") if is_late else (200, CHUNKS[digest])

    with serving(reply) as store:
        store.fetch()
    assert store.saved == CHUNKS
    assert len(store.signed) == 6, "a second time for each batch, and only what was refused"
    assert sum(store.signed) == sum(store.requested.values())


@pytest.mark.parametrize(
    ("status", "content", "kind", "words"),
    [
        (
            404,
            b"<Error><Code>NoSuchKey</Code></Error>",
            BrokenBundleError,
            f"the content store lacks {FIRST[:12]} of the environment",
        ),
        (200, b"X" * len(CHUNKS[FIRST]), BrokenBundleError, "has other bytes for"),
        (403, b"", StoreError, "refuses fresh addresses"),
    ],
)
def test_what_stays_wrong_is_named(status: int, content: bytes, kind: type[Exception], words: str) -> None:
    with (
        serving(lambda digest, _: (status, content) if digest == FIRST else (200, CHUNKS[digest])) as store,
        pytest.raises(kind, match=words),
    ):
        store.fetch()
    assert FIRST not in store.saved
