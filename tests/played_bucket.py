"""A bucket that a test plays: it takes uploads that are signed for their bytes, and does what a test asks of it."""

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from muster.settings import Settings
from muster.store.signing import AccessKey, Request, SignatureError, query_of, verify

KEY = AccessKey("tester", "secret-of-the-bucket")
BUCKET, REGION = "content", "us-east-1"
OnPut = Callable[[int], "tuple[int, str] | None"]


class PlayedBucket:
    """``objects``: by key. ``on_put`` gets the number of each upload, from 1, and may say a status and code instead."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, bytes] = {}
        self.num_puts = 0
        self.on_put: OnPut = lambda _number: None
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"bucket": self}))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.key_file = folder / "store.keys"
        self.key_file.write_text(f"{KEY.name} {KEY.secret}\n")
        self.key_file.chmod(0o600)
        self.key = KEY

    @property
    def settings(self) -> dict[str, Any]:
        return {"store_url": self.url, "store_bucket": BUCKET, "store_key_file": self.key_file}

    def whole(self) -> Settings:
        return Settings(**self.settings)


class _Handler(BaseHTTPRequestHandler):
    bucket: PlayedBucket
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        bucket = self.bucket
        with bucket.lock:
            bucket.num_puts += 1
            number = bucket.num_puts
        refusal = self._fault() or bucket.on_put(number)
        content = self.rfile.read(int(self.headers["content-length"]))
        checksum = base64.b64encode(hashlib.sha256(content).digest()).decode()
        if refusal is None and self.headers["x-amz-checksum-sha256"] != checksum:
            refusal = 400, "XAmzContentChecksumMismatch"
        if refusal is None:
            bucket.objects[unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")] = content
        status, code = refusal or (200, "")
        body = f"<Error><Code>{code}</Code><Message>played {code}</Message></Error>".encode() if code else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fault(self) -> tuple[int, str] | None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request("PUT", unquote(parts.path), query_of(parts.query), headers)
        required = ("host", "content-length", "x-amz-checksum-sha256")
        keys = {self.bucket.key.name: self.bucket.key}
        try:
            verify(request, keys.get, REGION, now=datetime.now(UTC), required=required)
        except SignatureError as error:
            return 403, f"{error.code} {error.detail}"
        return None

    def log_message(self, *_: Any) -> None:
        return None


@contextmanager
def played_bucket(folder: Path) -> Iterator[PlayedBucket]:
    bucket = PlayedBucket(folder)
    thread = threading.Thread(target=bucket.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        bucket.server.shutdown()
        bucket.server.server_close()
        thread.join()
