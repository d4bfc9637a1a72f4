"""The history of one GPU: chunks and blocks that are not compacted yet, joined, then a point a step."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import structlog

from control.core.records import records_of
from control.core.unit_of_work import UnitOfWork
from control.telemetry.codec import CodecError, Floats, unpack_block, unpack_seconds, unpack_segment
from control.telemetry.downsample import Points, downsample
from muster.db.models import Gpu
from muster.db.queries import telemetry_history as stored
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.gpu.metrics import INDEX, METRICS, NUM_METRICS, Metric
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import Permission
from muster.domain.times import to_ms

MAX_POINTS: Final = 10_000
MAX_SPAN: Final = timedelta(days=31)
MAX_GAPS: Final = 1_000
DEFAULT_SPAN: Final = timedelta(hours=1)
_USUAL_POINTS: Final = 360
_MIN_STEP_S: Final = 1.0
Samples = tuple[npt.NDArray[np.int64], Floats]
_log = structlog.get_logger(__name__)
_FIRST_YEAR, _LAST_YEAR = 1900, 9000
"""What is asked about times is computed with days and years around them, and a year has four digits."""
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Series:
    """One value a step, None where there is no reading."""

    metric: Metric
    values: Points


class TelemetryGapRecord(msgspec.Struct, frozen=True):
    """Reports that an agent had to drop, by its own count."""

    node_id: NodeId
    priority: str
    num_reports: int
    from_at: datetime
    until_at: datetime
    why: str


@dataclass(frozen=True, slots=True)
class History:
    """The history of one GPU. Point n covers [``since`` + n · ``step_s``, + ``step_s``)."""

    gpu_uuid: GpuUuid
    since: datetime
    until: datetime
    step_s: float
    series: tuple[Series, ...]
    gaps: Sequence[TelemetryGapRecord]


def history_of(
    unit: UnitOfWork,
    uuid: GpuUuid,
    *,
    metrics: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    step_s: float | None = None,
) -> History:
    """Return the history: by default every metric, the last hour, and a step that gives some hundred points.

    Raises:
        NotFoundError: no such GPU.
        ValidationFailedError: an unknown metric, or a time that is no span, too long, or too many points.
    """
    unit.principal.require(Permission.GPU_READ)
    chosen = _chosen(metrics)
    until = unit.now if until is None else until
    since = until - DEFAULT_SPAN if since is None else since
    step_s, num_points = _steps(since, until, step_s)
    gpu = unit.session.get(Gpu, uuid)
    if gpu is None:
        raise NotFoundError
    nodes = {gpu.node_id, *stored.places_of(unit.session, uuid)}
    times_ms, values = samples_of(unit, uuid, nodes, since, until)
    bins = ((times_ms - to_ms(since)) / (step_s * 1000)).astype(np.int64)
    series = tuple(
        Series(metric, downsample(metric.kind, bins, values[:, INDEX[metric.name]], num_points)) for metric in chosen
    )
    gaps = records_of(stored.gaps_between(unit.session, nodes, since, until, MAX_GAPS), TelemetryGapRecord)
    return History(uuid, since, until, step_s, series, gaps)


def _chosen(names: Sequence[str]) -> tuple[Metric, ...]:
    unknown = [name for name in names if name not in INDEX]
    if unknown:
        known = ", ".join(metric.name for metric in METRICS)
        raise ValidationFailedError.at("metric", "unknown_metric", f"there is no such metric; known are {known}")
    return tuple(METRICS[INDEX[name]] for name in dict.fromkeys(names)) or METRICS


def _steps(since: datetime, until: datetime, step_s: float | None) -> tuple[float, int]:
    span_s = (until - since).total_seconds()
    if span_s <= 0 or until - since > MAX_SPAN:
        raise ValidationFailedError.at(
            "from", "no_span", f"`from` must lie before `until`, at most {MAX_SPAN.days} days"
        )
    step_s = max(10.0, np.ceil(span_s / _USUAL_POINTS)) if step_s is None else max(_MIN_STEP_S, step_s)
    num_points = int(np.ceil(span_s / step_s))
    if num_points > MAX_POINTS:
        raise ValidationFailedError.at("step", "too_many_points", f"at most {MAX_POINTS} points; take a longer step")
    return float(step_s), num_points


def samples_of(unit: UnitOfWork, uuid: GpuUuid, nodes: set[NodeId], since: datetime, until: datetime) -> Samples:
    """Return the samples of one GPU as ``samples_of_all`` does."""
    return samples_of_all(unit, [uuid], nodes, since, until)[uuid]


def samples_of_all(
    unit: UnitOfWork, uuids: Sequence[GpuUuid], nodes: set[NodeId], since: datetime, until: datetime
) -> dict[GpuUuid, Samples]:
    """Return times in whole seconds (ms) and a row of values each, in order; samples of one second are joined.

    Blocks that are not compacted yet hold all GPUs of a node: they are read once for all of them.
    """
    times = {uuid: [np.zeros(0, dtype=np.int64)] for uuid in uuids}
    values: dict[GpuUuid, list[Floats]] = {uuid: [np.zeros((0, NUM_METRICS), dtype=np.float32)] for uuid in uuids}
    for uuid, moments, samples in _readable_parts(unit, uuids, nodes, since, until):
        times[uuid].append(moments)
        values[uuid].append(_widened(samples))
    span = (to_ms(since), to_ms(until))
    return {uuid: _joined(np.concatenate(times[uuid]), np.concatenate(values[uuid]), *span) for uuid in uuids}


def _readable_parts(
    unit: UnitOfWork, uuids: Sequence[GpuUuid], nodes: set[NodeId], since: datetime, until: datetime
) -> Iterator[tuple[GpuUuid, npt.NDArray[np.int64], Floats]]:
    """Yield the readable parts. A damaged part is left out, and logged."""
    for uuid in uuids:
        yield from _readable_segments(unit, uuid, nodes, since, until)
    for at, schema, content in stored.blocks_between(unit.session, nodes, since, until):
        try:
            block = unpack_block(content, schema)
        except CodecError as error:
            _log.error("telemetry_block_unreadable", nodes=sorted(nodes), at=at.isoformat(), fault=str(error))
            continue
        moment = np.array([to_ms(at) // 1000 * 1000], dtype=np.int64)
        for uuid in uuids:
            if uuid in block.gpu_uuids:
                yield uuid, moment, block.values[[block.gpu_uuids.index(uuid)]]


def _readable_segments(
    unit: UnitOfWork, uuid: GpuUuid, nodes: set[NodeId], since: datetime, until: datetime
) -> Iterator[tuple[GpuUuid, npt.NDArray[np.int64], Floats]]:
    for segment in stored.segments_of(unit.session, uuid, nodes, since, until):
        seconds = unpack_seconds(segment.seconds)
        try:
            values = unpack_segment(segment.content, len(seconds), segment.schema)
        except CodecError as error:
            _log.error("telemetry_chunk_unreadable", gpu_uuid=uuid, hour=segment.hour.isoformat(), fault=str(error))
            continue
        yield uuid, to_ms(segment.hour) + seconds * 1000, values


def _widened(values: Floats) -> Floats:
    """Return values of any readable schema with NaN for the metrics that it lacks."""
    missing = NUM_METRICS - values.shape[1]
    return np.pad(values, ((0, 0), (0, missing)), constant_values=np.nan) if missing else values


def _joined(
    times: npt.NDArray[np.int64], values: Floats, since_ms: int, until_ms: int
) -> tuple[npt.NDArray[np.int64], Floats]:
    is_within = (times >= since_ms) & (times < until_ms)
    moments, places = np.unique(times[is_within], return_inverse=True)
    joined = np.full((len(moments), values.shape[1]), np.nan, dtype=np.float32)
    np.fmax.at(joined, places, values[is_within])
    return moments, joined


def read_moment(name: str, text: str | None) -> datetime | None:
    """Return a time with its zone (RFC 3339), where one is given. Raises ``ValidationFailedError``."""
    if text is None:
        return None
    fault = ValidationFailedError.at(name, "no_moment", "must be a time with its zone, such as 2026-11-21T04:00:00Z")
    if _MOMENT.fullmatch(text) is None:
        raise fault
    try:
        moment = datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise fault from None
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        words = f"must be in a year from {_FIRST_YEAR} to {_LAST_YEAR}"
        raise ValidationFailedError.at(name, "no_moment", words)
    return moment
