"""Uploads to a store over TLS, whose certificate the system trusts or the control plane's authority has signed."""

import ssl
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from muster.client.object_puts import ObjectSource, PutConnections
from muster.content.read import open_file
from muster.documents import ObjectUpload
from tests.certificates import write_certificate

CONTENT = b"content"


class _Store(BaseHTTPRequestHandler):
    taken: list[bytes]

    def do_PUT(self) -> None:
        self.taken.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The store's certificate and key, and another certificate."""
    for name in ("store", "other"):
        (tmp_path / name).mkdir()
    return *write_certificate(tmp_path / "store"), write_certificate(tmp_path / "other", "another authority")[0]


@pytest.fixture
def store(certificates: tuple[Path, Path, Path]) -> Iterator[tuple[str, list[bytes]]]:
    taken: list[bytes] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Store", (_Store,), {"taken": taken}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates[:2])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/content/key?signed=1", taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(("of_system", "of_file"), [("store", "other"), ("other", "store"), ("store", None)])
def test_the_store_is_trusted_by_the_system_or_by_the_file(
    certificates: tuple[Path, Path, Path],
    store: tuple[str, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    of_system: str,
    of_file: str | None,
) -> None:
    paths = {"store": certificates[0], "other": certificates[2]}
    monkeypatch.setenv("SSL_CERT_FILE", str(paths[of_system]))
    url, taken = store
    upload: ObjectUpload = {
        "kind": "manifest",
        "digest": "d",
        "num_bytes": len(CONTENT),
        "method": "PUT",
        "url": url,
        "headers": {"Content-Length": str(len(CONTENT))},
    }
    source = ObjectSource(partial(open_file, Path()), {}, {"d": CONTENT})
    connections = PutConnections(source, None if of_file is None else paths[of_file])
    assert connections.put(upload)
    connections.close()
    assert taken == [CONTENT]
