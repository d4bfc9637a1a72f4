"""The records that ``muster health replay`` reads: what each line may hold, and what it becomes for the judge."""

import json
import math
from typing import Any, Final, Literal

import msgspec

from health.gpu_case import BurnInResult
from health.replay_stream import BreakerClosed, Burned, Input, Maintained, Passed, Placed, Sampled
from muster.domain.evidence import EventKind, GpuSample, GpuSignal, Source
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.metrics import INDEX, NUM_METRICS, SCHEMA
from muster.domain.state_readings import with_driver
from muster.domain.states import Standing
from muster.wire.telemetry import EventReport, Milliseconds, Report

UNKNOWN_NODE: Final = "node"
TYPES: Final = ("report", "event", "gpu", "sample", "burn_in", "breaker_closed", "maintenance", "time")


class RecordError(Exception):
    """The record is none. The message names the field, its fault and what is accepted."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node_id: str = UNKNOWN_NODE


class _Gpu(_Record, frozen=True, kw_only=True):
    type: Literal["gpu"]
    gpu_uuid: str
    standing: Standing
    at_ms: Milliseconds
    model: str = ""


class _Sample(_Record, frozen=True, kw_only=True):
    type: Literal["sample"]
    gpu_uuid: str
    at_ms: Milliseconds
    values: dict[str, float | None] = {}
    is_lost: bool = False


class _BurnIn(_Record, frozen=True, kw_only=True):
    type: Literal["burn_in"]
    gpu_uuid: str
    began_ms: Milliseconds
    ended_ms: Milliseconds
    has_passed: bool


class _Time(_Record, frozen=True, kw_only=True):
    type: Literal["time"]
    at_ms: Milliseconds


class _BreakerClosed(_Record, frozen=True, kw_only=True):
    type: Literal["breaker_closed"]
    scope: str
    at_ms: Milliseconds


class _Maintenance(_Record, frozen=True, kw_only=True):
    type: Literal["maintenance"]
    at_ms: Milliseconds
    until_ms: Milliseconds


def inputs_of(record: object, line: int) -> tuple[Input, ...]:
    """Of one line; ``line`` names an event without an id. Raises RecordError."""
    if not isinstance(record, dict):
        raise RecordError(f"wanted is an object: a report, an event, or one with a type ({', '.join(TYPES)})")
    _require_text(record)
    rest = dict(record)
    kind = rest.get("type")
    try:
        if kind in {"report", None} and ("gpus" in rest or "boot_id" in rest):
            return _of_report(rest)
        if kind in {"event", None} and "kind" in rest:
            return (_of_event(rest, line),)
        return (_of_typed(rest),)
    except msgspec.ValidationError as error:
        raise RecordError(str(error)) from None


def _require_text(record: dict[str, Any]) -> None:
    """JSON can name half a character, which no output can hold."""
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"a text holds half a character ({error.reason})") from None


def _of_report(rest: dict[str, Any]) -> tuple[Input, ...]:
    """As agents send it, with ``node_id`` beside. Samples first: an event may be about what they show."""
    rest.pop("type", None)
    node_id = NodeId(_node_of(rest))
    report = msgspec.convert(rest, Report, strict=True)
    if report.schema != SCHEMA:
        raise RecordError(f"schema: {report.schema} is unknown; this release reads {SCHEMA}")
    samples = [
        Sampled(
            node_id,
            GpuSample(GpuUuid(each.uuid), report.at_ms, tuple(each.values), each.is_lost, frozenset(each.from_dcgm)),
            is_history=report.is_history,
        )
        for each in report.gpus
    ]
    driver = None if report.node is None else report.node.driver_version
    return (*samples, *(_signal(event, node_id, driver) for event in report.events))


def _of_event(rest: dict[str, Any], line: int) -> GpuSignal:
    rest.pop("type", None)
    node_id = NodeId(_node_of(rest))
    rest.setdefault("event_id", f"line-{line}")
    rest.setdefault("source", "nvml")
    return _signal(msgspec.convert(rest, EventReport, strict=True), node_id)


def _of_typed(rest: dict[str, Any]) -> Input:
    match rest.get("type"):
        case "gpu":
            placed = msgspec.convert(rest, _Gpu)
            gpu_uuid, node_id = GpuUuid(placed.gpu_uuid), NodeId(placed.node_id)
            return Placed(placed.at_ms, gpu_uuid, node_id, placed.standing, placed.model)
        case "sample":
            return _of_sample(msgspec.convert(rest, _Sample))
        case "burn_in":
            burn_in = msgspec.convert(rest, _BurnIn)
            if burn_in.ended_ms < burn_in.began_ms:
                raise RecordError(f"ended_ms: {burn_in.ended_ms} lies before began_ms")
            result = BurnInResult(burn_in.began_ms, burn_in.ended_ms, burn_in.has_passed)
            return Burned(GpuUuid(burn_in.gpu_uuid), result, NodeId(burn_in.node_id))
        case "maintenance":
            window = msgspec.convert(rest, _Maintenance)
            if window.until_ms <= window.at_ms:
                raise RecordError(f"until_ms: {window.until_ms} does not lie after at_ms")
            return Maintained(window.at_ms, NodeId(window.node_id), window.until_ms)
        case "time":
            return Passed(msgspec.convert(rest, _Time).at_ms)
        case "breaker_closed":
            closed = msgspec.convert(rest, _BreakerClosed)
            return BreakerClosed(closed.at_ms, closed.scope)
        case other:
            raise RecordError(f"type: {other!r} is unknown; accepted are {', '.join(TYPES)}")


def _of_sample(told: _Sample) -> Sampled:
    values: list[float | None] = [None] * NUM_METRICS
    for name, value in told.values.items():
        if name not in INDEX:
            raise RecordError(f"values.{name}: there is no such metric; there are {', '.join(INDEX)}")
        if value is not None and not math.isfinite(value):
            raise RecordError(f"values.{name}: must be finite, or null where there is none")
        values[INDEX[name]] = value
    sample = GpuSample(GpuUuid(told.gpu_uuid), told.at_ms, tuple(values), told.is_lost)
    return Sampled(NodeId(told.node_id), sample)


def _node_of(rest: dict[str, Any]) -> str:
    node = rest.pop("node_id", UNKNOWN_NODE)
    if not isinstance(node, str) or not node:
        raise RecordError("node_id: wanted is a text")
    return node


def _signal(event: EventReport, node_id: NodeId, driver_version: str | None = None) -> GpuSignal:
    return GpuSignal(
        signal_id=event.event_id,
        kind=EventKind(event.kind),
        source=Source(event.source),
        at_ms=event.at_ms,
        node_id=node_id,
        gpu_uuid=None if event.gpu_uuid is None else GpuUuid(event.gpu_uuid),
        code=event.code,
        text=event.text,
        values=with_driver(event.kind, event.values, driver_version),
    )
