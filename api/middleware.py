"""The outermost layer, plain ASGI: request ids, Host, body limits, figures, and the last catch of what went wrong."""

import re
import time
from collections.abc import Mapping
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem_response
from muster.domain.errors import InternalError, MalformedRequestError, MusterError, PayloadTooLargeError
from muster.identity import new_id

HOST_BODY_BYTES: Final = 4 << 20
_HOST_PREFIX: Final = "/v1/hosts/"
_TELEMETRY: Final = "/v1/telemetry"
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_-]{8,64}")
_log = structlog.get_logger(__name__)


class Figures:
    """Requests by route template, method and status: never by what a caller may choose."""

    def __init__(self, registry: CollectorRegistry, templates: Mapping[Any, str]) -> None:
        self._templates = templates
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        labels = ("method", "route", "status")
        self.requests = Counter("muster_api_requests_total", "Requests answered", labels, registry=registry)
        self.seconds = Histogram(
            "muster_api_request_seconds", "Time to the first byte of the answer", ("route",), registry=registry
        )

    def note(self, scope: Scope, status: int, took_s: float) -> None:
        template = self._templates.get(scope.get("endpoint"), "unmatched")
        method = scope["method"] if scope["method"] in {"GET", "POST", "PUT", "PATCH", "DELETE"} else "other"
        self._requests_of(method, template, status).inc()
        self._seconds_of(template).observe(took_s)

    def _requests_of(self, method: str, template: str, status: int) -> Counter:
        """Kept: looking a child up by its labels costs more than counting."""
        child = self._counters.get((method, template, status))
        if child is None:
            child = self._counters[method, template, status] = self.requests.labels(method, template, str(status))
        return child

    def _seconds_of(self, template: str) -> Histogram:
        child = self._histograms.get(template)
        if child is None:
            child = self._histograms[template] = self.seconds.labels(template)
        return child


class Edge:
    """Wraps the whole application. ``templates``: each endpoint's path as it is declared, prefix included."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        body_bytes: int,
        allowed_hosts: frozenset[str],
        registry: CollectorRegistry,
        templates: Mapping[Any, str],
    ) -> None:
        self._app = app
        self._body_bytes = body_bytes
        self._allowed_hosts = allowed_hosts
        self._figures = Figures(registry, templates)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._limit(scope), self._figures)
        try:
            self._check_host(scope)
            exchange.check_length()
            await self._app(scope, exchange.receive, exchange.send)
        except MusterError as error:
            await exchange.fail(error)
        except ClientDisconnect:
            _log.info("caller_left", request_id=exchange.request_id, path=scope["path"][:512])
        except Exception:  # noqa: BLE001  # the process's edge: logged with its trace, answered without
            _log.exception("request_failed", request_id=exchange.request_id, path=scope["path"][:512])
            await exchange.fail(InternalError())

    def _limit(self, scope: Scope) -> int:
        is_of_host = scope["path"].startswith(_HOST_PREFIX) or scope["path"] == _TELEMETRY
        return HOST_BODY_BYTES if is_of_host else self._body_bytes

    def _check_host(self, scope: Scope) -> None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            raise MalformedRequestError("the Host header must name one host")
        name = hosts[0].decode("ascii")
        name = name[: name.rindex("]") + 1] if name.startswith("[") else name.split(":")[0]
        if self._allowed_hosts and name.lower() not in self._allowed_hosts:
            raise MalformedRequestError("this Host is not served here")


class _Exchange:
    """One request and its answer: counts the body as it comes in, stamps the answer as it goes out."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int, figures: Figures) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._limit = limit
        self._figures = figures
        self._started = time.perf_counter()
        self._seen_bytes = 0
        self._has_answered = False
        self.request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = self.request_id

    def check_length(self) -> None:
        lengths = [value for name, value in self._scope["headers"] if name == b"content-length"]
        if lengths and (not lengths[0].isdigit() or int(lengths[0][:20]) > self._limit):
            self._refuse_size()

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen_bytes += len(message.get("body", b""))
            if self._seen_bytes > self._limit:
                self._refuse_size()
        return message

    def _refuse_size(self) -> None:
        raise PayloadTooLargeError(f"the body is larger than {self._limit} bytes", limit_bytes=self._limit)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_answered = True
            headers = list(message.get("headers", []))
            if all(name != b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message["headers"] = [
                *headers,
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
                (b"referrer-policy", b"no-referrer"),
            ]
            self._figures.note(self._scope, message["status"], time.perf_counter() - self._started)
        await self._send(message)

    async def fail(self, error: MusterError) -> None:
        """Too late once the answer has begun: then the connection just ends."""
        if self._has_answered:
            return
        path = self._scope["path"].encode("utf-8", "replace").decode()[:512]
        response = problem_response(error, path=path, request_id=self.request_id)
        if isinstance(error, PayloadTooLargeError):
            response.headers["Connection"] = "close"
        await response(self._scope, self._receive, self.send)


def _request_id(scope: Scope) -> str:
    """The caller's own where it is short and plain, else a fresh one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode("ascii"))
    return new_id("request")
