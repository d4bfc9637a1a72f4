"""The records that ``muster health replay`` reads: the fields of each line, and the judge's input that it becomes."""

import json
import math
from typing import Any

import msgspec

from health.replay.stream import BreakerClosed, Burned, Fleet, Input, Maintained, Passed, Placed, Sampled
from health.standing.gpu_case import EVERY_GROUP, BurnInResult
from muster.cli.gpu.health_act_records import ActError, act_of, evidence_input, finding_input
from muster.domain.evidence.findings import EventKind, GpuSample, GpuSignal, Source
from muster.domain.evidence.state_readings import with_driver
from muster.domain.gpu.metrics import INDEX, NUM_METRICS, WIDTHS
from muster.domain.ids import GpuUuid, NodeId
from muster.wire import health_records as wire
from muster.wire.health_records import LINE_TYPES, RECORDS, UNKNOWN_NODE
from muster.wire.telemetry import EventReport, GpuReport, Report, in_present_schema


class RecordError(Exception):
    """A line is no record. The message names the field, its fault and what is accepted."""


def inputs_of(record: object, line: int) -> tuple[Input, ...]:
    """Return the inputs of one record; ``line`` names an event without an id. Raises RecordError."""
    if not isinstance(record, dict):
        raise RecordError(f"wanted is an object: a report, an event, or one with a type ({', '.join(LINE_TYPES)})")
    _require_text(record)
    rest = dict(record)
    kind = rest.get("type")
    try:
        if kind in {"report", None} and ("gpus" in rest or "boot_id" in rest):
            return _of_report(rest)
        if kind in {"event", None} and "kind" in rest:
            return (_of_event(rest, line),)
        return _of_typed(rest)
    except (msgspec.ValidationError, ActError) as error:
        raise RecordError(str(error)) from None


def _require_text(record: dict[str, Any]) -> None:
    """Refuse half a character, which JSON can name and no output can hold."""
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"a text holds half a character ({error.reason})") from None


def _of_report(rest: dict[str, Any]) -> tuple[Input, ...]:
    """Return the inputs of an agent's report with ``node_id``. Samples come first: an event may be about what they
    show.
    """
    rest.pop("type", None)
    node_id = NodeId(_node_of(rest))
    report = msgspec.convert(rest, Report, strict=True)
    samples = _samples(report.gpus, node_id, report.at_ms, report.schema, is_history=report.is_history)
    driver = None if report.node is None else report.node.driver_version
    return (*samples, *(_signal(event, node_id, driver) for event in report.events))


def _samples(
    gpus: tuple[GpuReport, ...], node_id: NodeId, at_ms: int, schema: int, *, is_history: bool = False
) -> tuple[Sampled, ...]:
    if schema not in WIDTHS:
        raise RecordError(f"schema: {schema} is unknown; this release reads {', '.join(map(str, sorted(WIDTHS)))}")
    try:
        whole = in_present_schema(gpus, schema)
    except ValueError as error:
        raise RecordError(f"values: {error}") from None
    return tuple(
        Sampled(
            node_id,
            GpuSample(GpuUuid(each.uuid), at_ms, tuple(each.values), each.is_lost, frozenset(each.from_dcgm)),
            is_history=is_history,
        )
        for each in whole
    )


def _of_event(rest: dict[str, Any], line: int) -> GpuSignal:
    rest.pop("type", None)
    node_id = NodeId(_node_of(rest))
    rest.setdefault("event_id", f"line-{line}")
    rest.setdefault("source", "nvml")
    return _signal(msgspec.convert(rest, EventReport, strict=True), node_id)


def _of_typed(rest: dict[str, Any]) -> tuple[Input, ...]:
    kind = RECORDS.get(str(rest.get("type")))
    if kind is None:
        raise RecordError(f"type: {rest.get('type')!r} is unknown; accepted are {', '.join(LINE_TYPES)}")
    told: wire.HealthRecord = msgspec.convert(rest, kind)
    match told:
        case wire.Export():
            return ()
        case wire.Samples():
            return _samples(told.gpus, NodeId(told.node_id), told.at_ms, told.schema)
        case wire.Sample():
            return (_of_sample(told),)
        case wire.KnownEvidence():
            return (evidence_input(told),)
        case wire.Finding():
            return (finding_input(told),)
        case wire.Dismissal() | wire.RepairBegan() | wire.RepairEnded() | wire.Moving() | wire.Override():
            return (act_of(told),)
        case _:
            return (_of_place(told),)


def _of_place(
    record: wire.Gpu | wire.Fleet | wire.BurnIn | wire.Maintenance | wire.Time | wire.BreakerClosed,
) -> Input:
    node_id = NodeId(record.node_id)
    match record:
        case wire.Gpu():
            gpu, where = GpuUuid(record.gpu_uuid), (record.since_ms, record.origin, record.rack, record.cohort)
            return Placed(record.at_ms, gpu, node_id, record.standing, record.model, *where)
        case wire.Fleet():
            return Fleet(record.at_ms, record.num_gpus, record.racks, record.cohorts)
        case wire.BurnIn():
            if record.ended_ms < record.began_ms:
                raise RecordError(f"ended_ms: {record.ended_ms} is before began_ms")
            covers = EVERY_GROUP if record.covers is None else frozenset(record.covers)
            result = BurnInResult(record.began_ms, record.ended_ms, record.has_passed, covers)
            return Burned(GpuUuid(record.gpu_uuid), result, node_id, record.reasons, record.is_wrong)
        case wire.Maintenance():
            if record.until_ms <= record.at_ms:
                raise RecordError(f"until_ms: {record.until_ms} does not lie after at_ms")
            return Maintained(record.at_ms, node_id, record.until_ms, record.is_drain)
        case wire.Time():
            return Passed(record.at_ms)
        case wire.BreakerClosed():
            return BreakerClosed(record.at_ms, record.scope)


def _of_sample(record: wire.Sample) -> Sampled:
    values: list[float | None] = [None] * NUM_METRICS
    for name, value in record.values.items():
        if name not in INDEX:
            raise RecordError(f"values.{name}: there is no such metric; there are {', '.join(INDEX)}")
        if value is not None and not math.isfinite(value):
            raise RecordError(f"values.{name}: must be finite, or null where there is none")
        values[INDEX[name]] = value
    sample = GpuSample(GpuUuid(record.gpu_uuid), record.at_ms, tuple(values), record.is_lost)
    return Sampled(NodeId(record.node_id), sample)


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
