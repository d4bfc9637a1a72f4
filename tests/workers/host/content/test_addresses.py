"""Which refusal of the control plane means that a bundle is broken, and which only that it is asked again."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from muster.domain.stored_content import FolderKind
from workers.host.content.control_plane import ContentSource
from workers.host.content.faults import BrokenBundleError, StoreError
from workers.host.content.fetch_order import FetchOrder, Progress

BUNDLE = "ab" * 32


@contextmanager
def control_plane(folder: Path, refusals: list[tuple[int, str | None]]) -> Iterator[ContentSource]:
    """Serve an API that refuses so often, by a status and the code of a problem, and then gives addresses."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, code = refusals.pop(0) if refusals else (200, None)
            document = {"manifest": {"url": "https://store.example/it", "headers": {}}, "chunks": []}
            if code is not None:
                document = {"code": code, "detail": f"refused as {code}"}
            body = json.dumps(document).encode() if status == 200 or code is not None else b"<html>no</html>"
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's signature
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    (folder / "key").write_text("mst_test")
    (folder / "key").chmod(0o600)
    order = FetchOrder(
        digest=BUNDLE,
        tenant_id="ten_test",
        part_id="att_test",
        fence=1,
        folder=str(folder / "work" / "att_test"),
        content_dir=str(folder / "content"),
        attempts_dir=str(folder / "attempts"),
        cache_bytes=1 << 30,
        free_bytes=0,
        are_linked=False,
        owner=None,
        api_url=f"http://127.0.0.1:{server.server_address[1]}",
        key_file=str(folder / "key"),
    )
    try:
        yield ContentSource(order, Progress(), BUNDLE, FolderKind.BUNDLE)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


@pytest.mark.parametrize(
    "refusal",
    [
        (404, "not_found"),
        (404, None),
        (401, "unauthenticated"),
        (403, "forbidden"),
        (408, "request_timeout"),
        (425, None),
        (426, "upgrade_required"),
        (429, "rate_limited"),
        (503, "unavailable"),
    ],
)
def test_a_refusal_that_is_not_of_the_bundle_is_tried_again(tmp_path: Path, refusal: tuple[int, str | None]) -> None:
    with control_plane(tmp_path, [refusal]) as source:
        assert source._ask(()).manifest.url == "https://store.example/it"


@pytest.mark.parametrize(
    ("code", "status", "fault"), [("no_such_bundle", 404, BrokenBundleError), ("stale_fence", 409, StoreError)]
)
def test_a_refusal_that_stays_ends_the_fetch(tmp_path: Path, code: str, status: int, fault: type[Exception]) -> None:
    refusals: list[tuple[int, str | None]] = [(status, code)] * 2
    with control_plane(tmp_path, refusals) as source, pytest.raises(fault):
        source._ask(())
    assert len(refusals) == 1, "it was asked once"
