"""A small real HTTP server that answers as a test says and remembers what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Requested:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    status: int = 200
    document: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None


@dataclass
class RecordedServer:
    url: str
    requested: list[Requested] = field(default_factory=list)


@contextmanager
def serving(answer: Callable[[Requested, int], Answer]) -> Iterator[RecordedServer]:
    """``answer`` gets each request and how many came before it."""

    class Handler(BaseHTTPRequestHandler):
        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = Requested(
                self.command, self.path, {key.lower(): value for key, value in self.headers.items()}, body
            )
            recorded.requested.append(asked)
            said = answer(asked, len(recorded.requested) - 1)
            content = json.dumps(said.document).encode() if said.raw is None else said.raw
            self.send_response(said.status)
            for name, value in {"Content-Type": "application/json", **said.headers}.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _take  # noqa: N815  # the library's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's signature
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    recorded = RecordedServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield recorded
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def problem(status: int, code: str, **members: Any) -> Answer:
    document = {"status": status, "code": code, "detail": f"it is {code}", "suggestion": "do otherwise", **members}
    return Answer(status, document)
