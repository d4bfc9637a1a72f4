"""One report to the server, and the meaning of its answer for that report."""

import gzip
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import structlog
from msgspec import UNSET

from agents import host_facts
from agents.host.clock import ServerClock
from agents.tokens import NoTokenError
from muster.client.transport import open_http
from muster.domain.gpu.metrics import METRICS, SCHEMA, WIDTHS
from muster.wire.telemetry import Report, ReportAccepted

PATH: Final = "/v1/telemetry"
GZIP_ABOVE_BYTES: Final = 8 << 10
MAX_RETRY_AFTER_S: Final = 600.0
KEEP_ALIVE_S: Final = 50.0
"""More than a few intervals, so that no report needs a handshake; less than the server's own 60 s."""

PLAIN_FOR_S: Final = 3_600.0
_UPGRADE: Final = "Upgrade the control plane before its hosts."
_log = structlog.get_logger(__name__)
_REPEATABLE: Final = frozenset({408, 425, 429})
_ABOUT_THE_CREDENTIAL: Final = frozenset({401, 403})
_ABOUT_THE_SERVER: Final = frozenset({404, 405, 407, 426})
"""Statuses that show no fault of the report: the path or the protocol is not served here (yet)."""


@dataclass(frozen=True, slots=True)
class FieldGroup:
    """Fields that one release added: name → the value with which the field is omitted."""

    of_report: Mapping[str, object] = field(default_factory=dict)
    of_node: Mapping[str, object] = field(default_factory=dict)
    of_gpu: Mapping[str, object] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return sorted({*self.of_report, *self.of_node, *self.of_gpu})


NEWER_FIELDS: Final = (
    FieldGroup(of_node={"port_throughput": UNSET}),
    FieldGroup(of_report={"ages_s": UNSET}, of_gpu={"is_late": False, "latency_ms": None, "ages_s": {}}),
    FieldGroup(of_gpu={"from_dcgm": ()}),
)
"""Fields that a server of an earlier release refuses, the newest first. A server that refuses one of a group
knows no newer group."""


@dataclass(frozen=True, slots=True)
class Accepted:
    interval_s: float
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The server will never take this report."""

    reason: str


@dataclass(frozen=True, slots=True)
class Later:
    """The report has to be sent again.

    ``retry_after_s``: the server's request. ``is_for_long``: a soon retry is of no use.

    ``is_failure``: the server failed, apparently on this very report (status 500). ``schema``: the one that the server
    reads instead of the report's.
    """

    why: str
    retry_after_s: float | None = None
    is_for_long: bool = False
    is_failure: bool = False
    schema: int | None = None


Outcome = Accepted | Refused | Later


class TelemetryClient:
    """Client.

    ``token`` gives the present credential; ``invalidate`` is called with one that the server does not accept.
    """

    def __init__(
        self,
        api_url: str,
        *,
        token: Callable[[], str],
        invalidate: Callable[[str], None] = lambda _token: None,
        ca_file: Path | None = None,
    ) -> None:
        self._http = open_http(api_url, "", ca_file=ca_file, keep_alive_s=KEEP_ALIVE_S)
        self._token = token
        self._invalidate = invalidate
        self._plain_until_s = 0.0
        self._num_left_out = 0
        self._schema = SCHEMA
        self.server_clock = ServerClock()
        """The offset of this host's clock from the server's, by each answer's date."""

    def close(self) -> None:
        self._http.close()

    def send(self, content: bytes) -> Outcome:
        """Send a report, and return an outcome in every case. Raises nothing.

        A server that does not know one of ``NEWER_FIELDS`` gets reports without it and newer ones, for an hour, and one
        of an earlier release reports of its schema.
        """
        now_s = time.monotonic()
        if now_s >= self._plain_until_s:
            self._num_left_out, self._schema = 0, SCHEMA
        outcome = self._sent(self._plain(content))
        if isinstance(outcome, Later) and outcome.schema is not None and outcome.schema < self._schema:
            self._schema, self._plain_until_s = outcome.schema, now_s + PLAIN_FOR_S
            _log.warning("server_is_older", schema=outcome.schema, suggestion=_UPGRADE)
            outcome = self._sent(self._plain(content))
        while (refused := _refused_in(outcome, content, self._num_left_out)) is not None:
            self._num_left_out, self._plain_until_s = refused + 1, now_s + PLAIN_FOR_S
            _log.warning("server_is_older", passed_over=", ".join(NEWER_FIELDS[refused].names), suggestion=_UPGRADE)
            outcome = self._sent(self._plain(content))
        return outcome

    def _plain(self, content: bytes) -> bytes:
        return in_earlier_schema(without_newer_fields(content, self._num_left_out), self._schema)

    def _sent(self, content: bytes) -> Outcome:
        encoding = {}
        if len(content) > GZIP_ABOVE_BYTES:
            encoding["Content-Encoding"] = "gzip"
            content = gzip.compress(content, 6, mtime=0)
        try:
            return outcome_of(self.post(PATH, content, encoding))
        except NoTokenError as fault:
            return Later(str(fault), is_for_long=fault.is_for_long)
        except httpx.HTTPError as error:
            return Later(f"no answer: {str(error) or type(error).__name__}")

    def post(self, path: str, content: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Send one request under the present credential.

        Raises:
            NoTokenError: there is none.
            httpx.HTTPError: no answer came.
        """
        token = self._token()
        named = {"Content-Type": "application/json", "Authorization": f"Bearer {token}", **headers}
        asked_ms = host_facts.wall_ms()
        answer = self._http.post(path, content=content, headers=named)
        self.server_clock.saw(answer.headers.get("date", ""), asked_ms, host_facts.wall_ms())
        if answer.status_code == 401:
            self._invalidate(token)
        return answer


def _refused_in(outcome: Outcome, content: bytes, num_left_out: int) -> int | None:
    """Return for which group of newer fields the server refused the report; None for any other outcome."""
    if not isinstance(outcome, Refused):
        return None
    for number in range(num_left_out, len(NEWER_FIELDS)):
        if any(name in outcome.reason and name.encode() in content for name in NEWER_FIELDS[number].names):
            return number
    return None


def without_newer_fields(content: bytes, num_left_out: int) -> bytes:
    """Return a report without so many groups of newer fields: its readings stay, DCGM's as if they were NVML's."""
    left_out = NEWER_FIELDS[:num_left_out]
    if not any(name.encode() in content for group in left_out for name in group.names):
        return content
    report = msgspec.json.decode(content, type=Report)
    for group in left_out:
        node = None if report.node is None else msgspec.structs.replace(report.node, **group.of_node)
        gpus = tuple(msgspec.structs.replace(gpu, **group.of_gpu) for gpu in report.gpus)
        report = msgspec.structs.replace(report, node=node, gpus=gpus, **group.of_report)
    return msgspec.json.encode(report)


def in_earlier_schema(content: bytes, schema: int) -> bytes:
    """Return a report without the metrics that ``schema`` lacks; one of that schema or an earlier one as it is."""
    if schema >= SCHEMA:
        return content
    report = msgspec.json.decode(content, type=Report)
    if report.schema <= schema:
        return content
    width = WIDTHS[schema]
    known = {metric.name for metric in METRICS[:width]}
    gpus = tuple(
        msgspec.structs.replace(
            gpu, values=gpu.values[:width], from_dcgm=tuple(name for name in gpu.from_dcgm if name in known)
        )
        for gpu in report.gpus
    )
    return msgspec.json.encode(msgspec.structs.replace(report, schema=schema, gpus=gpus))


def outcome_of(answer: httpx.Response) -> Outcome:
    status = answer.status_code
    if answer.is_success:
        return _accepted(answer)
    words = f"{status} {_code_of(answer)}"
    wait_s = retry_after_s(answer)
    if status in _REPEATABLE or status >= 500:
        return Later(words, retry_after_s=wait_s, is_failure=status == 500)
    if status in _ABOUT_THE_CREDENTIAL:
        # With a fresh token it may be sent at once; where there is none, requests for one have a pace of their own.
        return Later(words, retry_after_s=wait_s, is_for_long=status != 401)
    if status in _ABOUT_THE_SERVER or status < 400:
        schema = _schema_of(answer) if status == 426 else None
        return Later(words, retry_after_s=wait_s, is_for_long=True, schema=schema)
    return Refused(words)


def _accepted(answer: httpx.Response) -> Outcome:
    try:
        message = msgspec.json.decode(answer.content, type=ReportAccepted)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Later(f"{answer.status_code} with an answer that cannot be read", is_for_long=True)
    return Accepted(message.interval_s, message.is_duplicate)


def _code_of(answer: httpx.Response) -> str:
    document = _problem_in(answer)
    return f"{document.get('code', '')}: {document.get('detail', '')}"[:300] if document else ""


def _schema_of(answer: httpx.Response) -> int | None:
    """Return the schema that the server reads, if this release can write it."""
    stated = _problem_in(answer).get("schema")
    is_number = isinstance(stated, int) and not isinstance(stated, bool)
    return stated if is_number and stated in WIDTHS else None


def _problem_in(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        document = answer.json()
    except (ValueError, UnicodeDecodeError):
        return {}
    return document if isinstance(document, dict) else {}


def retry_after_s(answer: httpx.Response) -> float | None:
    """Return the header in seconds: a number, or a date by the server's own clock. Ten minutes at most."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:6]), MAX_RETRY_AFTER_S)
    until = _date_of(text)
    if until is None:
        return None
    now = _date_of(answer.headers.get("date", "")) or datetime.now(UTC)
    return min(max((until - now).total_seconds(), 0.0), MAX_RETRY_AFTER_S)


def _date_of(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
