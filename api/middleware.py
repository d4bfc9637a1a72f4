"""The outermost layer, plain ASGI: request ids, Host, body limits, figures, and the last handler of failures."""

import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.places import RequestPlaces, credential_in
from api.problems import problem_response
from muster import __version__
from muster.domain import versions
from muster.domain.errors import (
    ClientVersionError,
    InternalError,
    MalformedRequestError,
    MusterError,
    PayloadTooLargeError,
)
from muster.identity import new_id

HOST_BODY_BYTES: Final = 4 << 20
_HOST_PREFIX: Final = "/v1/hosts/"
_TELEMETRY: Final = "/v1/telemetry"
_MANIFESTS: Final = re.compile(r"/v1/bundles|/v1/hosts/self/attempts/[^/]+/folders/[^/]+/[^/]+")
"""Paths whose body is the manifest of a folder."""
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_-]{8,64}")
_CREDENTIALS: Final = frozenset({b"authorization", b"cookie"})
_API_PREFIX: Final = "/v1/"
_CLIENT_VERSION: Final = versions.CLIENT_HEADER.lower().encode()
_NOT_CACHED: Final = (b"cache-control", b"no-store")
_ON_EACH_ANSWER: Final = (
    (versions.SERVER_HEADER.lower().encode(), __version__.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_STREAM: Final = b"text/event-stream"
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_BOUNDS_S: Final = (*Histogram.DEFAULT_BUCKETS[:-1], float("inf"))
_log = structlog.get_logger(__name__)


class _Tally:
    """Requests of one method, route and status: how many, and how long they took, by the histogram's buckets."""

    __slots__ = ("in_bucket", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.in_bucket = [0] * len(_BOUNDS_S)

    def add(self, took_s: float) -> None:
        self.seconds += took_s
        self.in_bucket[bisect_left(_BOUNDS_S, took_s)] += 1


class Figures(Collector):
    """Counts of requests by route template, method and status: never by values that a caller may choose.

    They are counted in the loop's thread alone, so without the locks of the library's own counters, which cost more
    than counting.
    """

    def __init__(self, templates: Mapping[Any, str]) -> None:
        self._templates = templates
        self._tallies: dict[tuple[str, str, int], _Tally] = {}

    def note(self, scope: Scope, status: int, took_s: float) -> None:
        template = self._templates.get(scope.get("endpoint"), "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        key = method, template, status
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally()
        tally.add(took_s)

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("muster_api_requests", "Requests answered", labels=("method", "route", "status"))
        by_route: dict[str, _Tally] = {}
        for (method, template, status), tally in list(self._tallies.items()):
            in_bucket, of_route = list(tally.in_bucket), by_route.setdefault(template, _Tally())
            requests.add_metric((method, template, str(status)), sum(in_bucket))
            of_route.seconds += tally.seconds
            of_route.in_bucket = [one + other for one, other in zip(of_route.in_bucket, in_bucket, strict=True)]
        yield requests
        seconds = HistogramMetricFamily(
            "muster_api_request_seconds", "Time to the first byte of the answer", labels=("route",)
        )
        for template, tally in by_route.items():
            counts = zip(map(floatToGoString, _BOUNDS_S), accumulate(tally.in_bucket), strict=True)
            seconds.add_metric((template,), [(bound, float(count)) for bound, count in counts], tally.seconds)
        yield seconds


class Edge:
    """Middleware around the whole application.

    ``templates``: each endpoint's path as it is declared, prefix included.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        body_bytes: int,
        manifest_bytes: int,
        places: RequestPlaces,
        allowed_hosts: frozenset[str],
        registry: CollectorRegistry,
        templates: Mapping[Any, str],
    ) -> None:
        self._app = app
        self._body_bytes = body_bytes
        self._manifest_bytes = manifest_bytes
        self._places = places
        self._allowed_hosts = allowed_hosts
        self._figures = Figures(templates)
        registry.register(self._figures)
        self._host_seen: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hosts, lengths, credential, request_id, client = _requested(scope["path"], scope["headers"])
        exchange = _Exchange(scope, receive, send, self._limit(scope), self._figures, request_id)
        try:
            if credential is not None:
                exchange.take_place(self._places, credential)
            if hosts != self._host_seen:
                self._check_host(hosts)
                self._host_seen = hosts
            if client is not None:
                _check_client(scope, hosts[0], client)
            if lengths:
                exchange.check_length(lengths)
            await self._app(scope, exchange.receive, exchange.send)
        except MusterError as error:
            await exchange.fail(error)
        except ClientDisconnect:
            _log.info("caller_left", request_id=exchange.request_id, path=scope["path"][:512])
        except Exception:  # noqa: BLE001  # the process's edge: logged with its trace, answered without
            _log.exception("request_failed", request_id=exchange.request_id, path=scope["path"][:512])
            await exchange.fail(InternalError())
        finally:
            exchange.leave_place()

    def _limit(self, scope: Scope) -> int:
        path = scope["path"]
        if path == _TELEMETRY:
            return HOST_BODY_BYTES
        if _MANIFESTS.fullmatch(path):
            return self._manifest_bytes
        return HOST_BODY_BYTES if path.startswith(_HOST_PREFIX) else self._body_bytes

    def _check_host(self, hosts: list[bytes]) -> None:
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            raise MalformedRequestError("the Host header must name one host")
        name = hosts[0].decode("ascii")
        name = name[: name.rindex("]") + 1] if name.startswith("[") else name.split(":")[0]
        if self._allowed_hosts and name.lower() not in self._allowed_hosts:
            raise MalformedRequestError("this Host is not served here")


def _check_client(scope: Scope, host: bytes, version: bytes) -> None:
    """Refuse a client that may not know what the API's answers mean, before the request has an effect."""
    client = version.decode("latin-1")
    if scope["path"].startswith(_API_PREFIX) and not versions.fits(client, __version__):
        address = f"{scope.get('scheme', 'http')}://{host.decode('ascii')}"
        words, advice = versions.misfit_words(client, __version__), versions.misfit_advice(address)
        raise ClientVersionError(words, suggestion=advice, server_version=__version__)


class _Exchange:
    """One request and its answer: counts the body as it arrives, and adds headers to the answer as it leaves."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limit: int, figures: Figures, request_id: str
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._limit = limit
        self._figures = figures
        self._started = time.perf_counter()
        self._seen_bytes = 0
        self._has_answered = False
        self._places: RequestPlaces | None = None
        self._credential = b""
        self.request_id = request_id
        scope.setdefault("state", {})["request_id"] = self.request_id

    def take_place(self, places: RequestPlaces, credential: bytes) -> None:
        places.take(credential)
        self._places, self._credential = places, credential

    def leave_place(self) -> None:
        """Leave the request's place, if it still has one."""
        if self._places is not None:
            self._places.leave(self._credential)
            self._places = None

    def check_length(self, lengths: list[bytes]) -> None:
        if not lengths[0].isdigit() or int(lengths[0][:20]) > self._limit:
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
            has_caching = is_stream = False
            for name, value in headers:
                if name == b"cache-control":
                    has_caching = True
                elif name == b"content-type":
                    is_stream |= value.startswith(_STREAM)
            if not has_caching:
                headers.append(_NOT_CACHED)
            message["headers"] = [*headers, (b"x-request-id", self.request_id.encode()), *_ON_EACH_ANSWER]
            if is_stream:
                self.leave_place()  # a stream has a place of its own kind for as long as it lasts
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


def _requested(
    path: str, headers: Iterable[tuple[bytes, bytes]]
) -> tuple[list[bytes], list[bytes], bytes | None, str, bytes | None]:
    """Return Hosts, Content-Lengths, the credential, the request's id: the caller's own if short and plain, else a
    new one, and the client's version. The credential is a digest of the header that has it.

    They are found in one pass, since every request needs it.
    """
    hosts, lengths, credential, request_id, client = [], [], None, None, None
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            lengths.append(value)
        elif name in _CREDENTIALS and credential is None:
            credential = credential_in(path, name, value)
        elif name == b"x-request-id" and request_id is None and _REQUEST_ID.fullmatch(value):
            request_id = value.decode("ascii")
        elif name == _CLIENT_VERSION:
            client = value
    return hosts, lengths, credential, request_id or new_id("request"), client
