"""Asks the API and the console as one caller about one object, and hands back every byte of the answer."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import anyio
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from api.refusals import documented_path
from muster.domain.gpu.metrics import NUM_METRICS, SCHEMA
from tests.authorisation.callers import Caller
from tests.authorisation.routes import PAGES, Row, Whose, fields_of

ENDLESS: Final = {
    "/v1/events/stream",
    "/console/live",
    "/console/fleet/stream",
    "/console/jobs/{job_id}/logs/follow",
}
"""Streams of which the first bytes are taken, and no more."""
GENERAL: Final = {
    "tier": "on_demand",
    "name": "quarantine",
    "code": "not_found",
    "version": "1",
    "month": "2026-11",
    "outcome": "finish",
    "kind": "outputs",
    "folder": "step-7",
    "project": "muster-client",
    "environment_key": "a1" * 32,
}
MISSING: Final = {
    **{
        f"{noun}_id": f"{prefix}_00000000000000000000000000"
        for noun, prefix in {
            "job": "job",
            "attempt": "att",
            "key": "key",
            "person": "prs",
            "tenant": "ten",
            "reclaim": "rcl",
            "secret": "sec",
            "route": "rte",
            "notification": "ntf",
            "verdict": "vrd",
            "incident": "inc",
            "cordon": "cdn",
            "evidence": "ev",
            "burn_in": "bi",
            "repair": "rep",
            "node": "node",
        }.items()
    },
    "uuid": "GPU-none",
    "node": "nowhere",
    "key": "none",
    "name": "nobody",
    "code": "nothing",
    "version": "999999",
    "month": "2026-11",
    "digest": "0",
    "bundle": "0" * 64,
    "outputs_id": "999999",
    "path:path": "none",
}
LONG_S: Final = 240.0
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """``content``: the body, and the headers before it. ``requested``: all that the caller sent."""

    status: int
    content: bytes
    requested: str

    def leaks(self, secrets: frozenset[str]) -> list[str]:
        """Return the secrets that stand in it, except for what the caller itself had named."""
        return sorted(secret for secret in secrets if secret not in self.requested and secret.encode() in self.content)

    def reported(self) -> str:
        """What it says beyond the names that were asked for and the request's own id."""
        document = json.loads(self.content.split(b"\n\n", 1)[1])
        return json.dumps({key: value for key, value in document.items() if key not in {"instance", "request_id"}})


@dataclass
class Requesting:
    """``document``: what the API says of itself, for which operations can be tried and rolled back."""

    client: TestClient
    app: ASGIApp
    document: Document
    file: tuple[str, str]
    """Digest and name of a file that the console serves."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1_000))

    def ask(self, row: Row, caller: Caller, whose: Whose) -> Answer:
        where, body = row.filled(self._ids(caller, whose))
        headers = {**caller.headers(is_page=row.is_page), "Host": "127.0.0.1"}
        content = b""
        if row.is_page and row.method == "POST":
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            content = _form({"csrf": caller.csrf, "reason": "to see", "step": "preview", **fields_of(body)})
        elif not row.is_page:
            where, wanted = self._harmless(row, where)
            headers.update(wanted)
            if body:
                headers["Content-Type"] = "application/json"
                content = body.encode()
        asked = f"{where}\n{body}"
        if row.path in ENDLESS or "follow=true" in where:
            return self._first_of(row.method, where, headers, asked)
        answer = self.client.request(row.method, where, headers=headers, content=content, follow_redirects=False)
        return _answer(answer.status_code, answer.headers.items(), answer.content, asked)

    def _ids(self, caller: Caller, whose: Whose) -> dict[str, str]:
        number = next(self._numbers)
        digest, name = self.file
        named = (caller.foreign if whose == "foreign" else caller.own).ids
        general = {
            **GENERAL,
            "digest": digest,
            "name:path": name,
            "number": str(number),
            "place": "0",
            **_moment(),
        }
        return {**general, **named, **(MISSING if whose == "missing" else {})}

    def _harmless(self, row: Row, where: str) -> tuple[str, dict[str, str]]:
        """Tried and rolled back where the operation offers it; of whatever version."""
        operation = self.document["paths"][documented_path(row.path)][row.method.lower()]
        names = {each["name"] for each in operation.get("parameters", ())}
        if "dry_run" in names:
            where += ("&" if "?" in where else "?") + "dry_run=true"
        return where, {"If-Match": "*"} if "if-match" in names else {}

    def follow(self, where: str, caller: Caller, *, until: bytes, meanwhile: Callable[[], None]) -> bytes:
        """Return what a stream sends until it has sent ``until``. ``meanwhile`` is done once it has begun."""
        headers = {**caller.headers(is_page=where.startswith(PAGES)), "Host": "127.0.0.1"}
        has_begun = threading.Event()
        assert self.client.portal is not None
        listening = self.client.portal.start_task_soon(
            _listen, self.app, _scope("GET", where, headers), until, has_begun
        )
        assert has_begun.wait(LONG_S), "the stream does not begin"
        meanwhile()
        content: bytes = listening.result(LONG_S)[2]
        return content

    def _first_of(self, method: str, where: str, headers: Mapping[str, str], requested: str) -> Answer:
        """The caller leaves as soon as it has got something."""
        assert self.client.portal is not None
        scope = _scope(method, where, headers)
        status, sent, content = self.client.portal.call(_listen, self.app, scope, b"", threading.Event())
        return _answer(status, sent, content, requested)


def _scope(method: str, where: str, headers: Mapping[str, str]) -> dict[str, Any]:
    parts = urlsplit(where)
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


async def _listen(
    app: ASGIApp, scope: MutableMapping[str, Any], until: bytes, has_begun: threading.Event
) -> tuple[int, list[tuple[str, str]], bytes]:
    """A caller that leaves once the body holds ``until``, or anything where that is empty."""
    is_enough = anyio.Event()
    requests = iter([{"type": "http.request", "body": b"", "more_body": False}])
    status, headers, content = 0, [], b""

    async def receive() -> MutableMapping[str, Any]:
        for request in requests:
            return request
        await is_enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, headers, content
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
        elif message["type"] == "http.response.body":
            content += message.get("body", b"")
            if content:
                has_begun.set()
            if (content and until in content) or not message.get("more_body", False):
                is_enough.set()

    await app(scope, receive, send)
    return status, headers, content


def _answer(status: int, headers: Any, content: bytes, requested: str) -> Answer:
    head = "\n".join(f"{name}: {value}" for name, value in headers)
    return Answer(status, head.encode() + b"\n\n" + content, requested)


def _form(fields: Mapping[str, str]) -> bytes:
    return urlencode(fields).encode()


def _moment() -> dict[str, str]:
    """Of now, since windows and ends are counted from it."""
    now = datetime.now(UTC)
    return {
        "now_ms": str(round(now.timestamp() * 1000)),
        "tomorrow": (now + timedelta(days=1)).isoformat(),
        "schema": str(SCHEMA),
        "values": json.dumps([None] * NUM_METRICS),
    }
