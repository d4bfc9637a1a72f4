"""Route ``POST /v1/telemetry`` as plain ASGI before the router, since the framework costs more than the report itself.

It is declared all the same: the permission is read from the registry of routes, and without it nothing starts.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Receive, Scope, Send

from api.declared_query import refusal_of, unknown_parameters
from api.host_threads import HostThreads
from api.permissions import UndeclaredRouteError, declared_routes
from api.telemetry_bodies import BodyReader, ReadReport, read_report
from api.telemetry_patience import BodyPatience, running_task
from control.core.unit_of_work import UnitOfWorkFactory
from control.telemetry.intake import Intake
from control.telemetry.reports import Duplicate, IncomingReport, Outcome, SetAside
from control.tenants.keys import authenticate
from muster.domain.errors import MalformedRequestError, MusterError, UnauthenticatedError
from muster.domain.principals import Permission, Principal
from muster.domain.times import to_ms
from muster.wire.telemetry import ReportAccepted

PATH: Final = "/v1/telemetry"
INTERVAL_S: Final = 10.0
KNOWN_FOR_S: Final = 900.0
"""Time for which a token's principal is cached. Each group commit checks that the key still opens anything."""
SURE_FOR_S: Final = 5.0
"""Age of a principal from which a refusal, which no group commit sees, checks the key again.

A revoked key gets no other answer."""
MAX_KNOWN: Final = 50_000
BODY_PATIENCE_S: Final = 30.0
_IN_THREAD_BYTES: Final = 256 << 10
_SCHEME: Final = b"bearer "
_encode: Final = msgspec.json.Encoder().encode


class TelemetryRoute:
    """Application that takes the one path, and passes every other request on.

    Raises:
        UndeclaredRouteError: the path declares no permission.
    """

    def __init__(self, app: ASGIApp, router: FastAPI, units: UnitOfWorkFactory, intake: Intake) -> None:
        self._app = app
        self._units = units
        self._intake = intake
        self._permission = declared_permission(router)
        self._threads: HostThreads = router.state.host_threads
        self._endpoint = next(route.endpoint for route in iter_route_contexts(router.routes) if route.path == PATH)
        self._known: dict[bytes, tuple[Principal, float]] = {}
        self._answers: _Answers | None = None
        self._patience = BodyPatience(BODY_PATIENCE_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["endpoint"] = self._endpoint
        token = _token_in(scope)
        known = self._known.get(_digest(token))
        if known is None or time.monotonic() - known[1] >= KNOWN_FOR_S:
            known = await self._ask(scope, token)
        principal, asked_at = known
        try:
            answer = await self._take(scope, receive, principal)
        except UnauthenticatedError:
            self._known.pop(_digest(token), None)
            raise
        except MusterError:
            if time.monotonic() - asked_at > SURE_FOR_S:
                await self._ask(scope, token)
            raise
        body = _encode(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _ask(self, scope: Scope, token: bytes) -> tuple[Principal, float]:
        principal = await self._threads.authenticate(token, self._principal_of, scope, token)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        known = self._known[_digest(token)] = (principal, time.monotonic())
        return known

    def _principal_of(self, scope: Scope, token: bytes) -> Principal:
        client = scope.get("client")
        principal = authenticate(
            self._units,
            token.decode("latin-1"),
            address=client[0] if client else None,
            request_id=scope.get("state", {}).get("request_id"),
        )
        principal.require(self._permission)
        return principal

    async def _take(self, scope: Scope, receive: Receive, principal: Principal) -> ReportAccepted:
        principal.require(self._permission)
        if principal.node_id is None:
            raise UnauthenticatedError
        if scope["query_string"] and (faults := unknown_parameters(scope["query_string"], ())):
            raise refusal_of(faults)
        task = running_task()
        read = await self._report_in(scope, receive, task)
        report, now_ms = read.report, to_ms(self._units.clock())
        incoming = IncomingReport(
            principal.node_id, principal.key_id, report, now_ms, SetAside.of(read.set_aside, read.num_values)
        )
        loop = task.get_loop()  # asking for the running loop is a call to the kernel each time
        if self._answers is None or self._answers.loop is not loop:
            self._answers = _Answers(loop)
        outcome = await self._answers.outcome_of(self._intake, incoming)
        if isinstance(outcome, MusterError):
            raise outcome
        return ReportAccepted(
            boot_id=report.boot_id,
            seq=report.seq,
            is_duplicate=isinstance(outcome, Duplicate),
            interval_s=INTERVAL_S,
            set_aside=read.set_aside or msgspec.UNSET,
        )

    async def _report_in(self, scope: Scope, receive: Receive, task: "asyncio.Task[Any]") -> ReadReport:
        reader = BodyReader(scope["headers"])
        with self._patience.with_body(task):
            is_more = True
            while is_more:
                message = await receive()
                if message["type"] != "http.request":
                    raise MalformedRequestError("the connection ended before the body did")
                reader.feed(message.get("body", b""))
                is_more = message.get("more_body", False)
        body = reader.whole()
        return read_report(body) if len(body) <= _IN_THREAD_BYTES else await self._threads.run(read_report, body)


def declared_permission(router: FastAPI) -> Permission:
    """Return the permission that the route at ``PATH`` declares. Raises ``UndeclaredRouteError`` where it has none."""
    words = next((words for method, path, words in declared_routes(router) if (method, path) == ("POST", PATH)), None)
    if words not in set(Permission):
        message = f"POST {PATH}: declare requires(Permission.…)"
        raise UndeclaredRouteError(message)
    return Permission(words)


def _token_in(scope: Scope) -> bytes:
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(found) != 1 or found[0][: len(_SCHEME)].lower() != _SCHEME:
        raise UnauthenticatedError
    token: bytes = found[0][len(_SCHEME) :]
    return token


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class _Answers:
    """Delivery of outcomes from the flusher's thread to the waiting requests: one call into the loop a group."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[tuple[asyncio.Future[Outcome], Outcome]] = deque()
        self._is_called = False

    async def outcome_of(self, intake: Intake, incoming: IncomingReport) -> Outcome:
        future: asyncio.Future[Outcome] = self.loop.create_future()

        def deliver(outcome: Outcome) -> None:
            self._ready.append((future, outcome))
            if not self._is_called and not self.loop.is_closed():
                self._is_called = True
                self.loop.call_soon_threadsafe(self._hand_out)

        intake.submit(incoming, deliver)
        return await future

    def _hand_out(self) -> None:
        self._is_called = False
        while self._ready:
            future, outcome = self._ready.popleft()
            if not future.done():
                future.set_result(outcome)


class TelemetryFigures(Collector):
    """Figures of the intake since this process began."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def collect(self) -> Iterable[Metric]:
        counts: dict[str, tuple[str, Any]] = {
            "muster_telemetry_reports": ("Reports stored", self._intake.num_reports),
            "muster_telemetry_duplicates": ("Reports that had come before", self._intake.num_duplicates),
            "muster_telemetry_groups": ("Group commits", self._intake.num_groups),
            "muster_telemetry_reports_not_judged": (
                "Reports whose samples could not be judged",
                self._intake.judge.num_failed,
            ),
            "muster_telemetry_unknown_gpus": (
                "Samples of GPUs that no node has enrolled",
                self._intake.num_unknown_gpus,
            ),
            "muster_telemetry_samples_set_aside": (
                "Samples of GPUs in which a value is no number, not kept",
                self._intake.unreadable.num_samples,
            ),
            "muster_telemetry_values_set_aside": (
                "Values of events that are no numbers, not kept",
                self._intake.unreadable.num_values,
            ),
            "muster_telemetry_unknown_kinds": (
                "Events of a kind that this release does not know, kept and not judged",
                self._intake.num_unknown_kinds,
            ),
        }
        for name, (words, count) in counts.items():
            yield CounterMetricFamily(name, words, value=count)
