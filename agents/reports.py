"""Conversion of a probe's results to wire messages: bounded, clean text, no number that JSON cannot hold."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from agents.freshness import SignsOfLife
from agents.probes.interface import GpuCheck, ProbeEvent
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.gpu.metrics import SCHEMA
from muster.wire.telemetry import (
    MAX_EVENTS,
    MAX_GPUS,
    TELEMETRY_PROTOCOL,
    EventReport,
    GpuReport,
    NodeReport,
    Report,
)

_MAX_VALUE: Final = 1e15
_MAX_ID: Final = 200
_WIRE_SOURCES: Final[Mapping[Source, Any]] = {
    Source.NVML: "nvml",
    Source.KERNEL_LOG: "kernel_log",
    Source.DCGM: "dcgm",
    Source.HOST: "host",
}


class Numbering:
    """Sequence numbers that grow across restarts within one boot, since the boot-time clock does.

    ``step`` leaves numbers in between for gap reports.
    """

    def __init__(self, newest_seq: int, step: int) -> None:
        self._last = newest_seq
        self._step = step

    def next(self, boottime_ms: int) -> int:
        after = self._last - self._last % self._step + self._step
        self._last = max(after, boottime_ms * self._step)
        return self._last


def sample_report(
    checks: Iterable[GpuCheck],
    node: NodeReport | None,
    open_events: Iterable[EventReport],
    *,
    boot_id: str,
    seq: int,
    at_ms: int,
    signs: SignsOfLife | None = None,
) -> Report:
    """Return a report of current state: each GPU, the node, and every event that is still open.

    ``signs``: the ages that it states; None where nothing may be concluded from a GPU without readings.
    """
    gpus = tuple(gpu_report(check, signs) for check in checks)[:MAX_GPUS]
    return Report(
        protocol=TELEMETRY_PROTOCOL,
        boot_id=boot_id,
        seq=seq,
        at_ms=at_ms,
        schema=SCHEMA,
        gpus=gpus,
        node=node,
        events=tuple(open_events)[:MAX_EVENTS],
        ages_s=UNSET if signs is None else signs.host_ages_s(),
    )


def events_report(events: tuple[EventReport, ...], *, boot_id: str, seq: int, at_ms: int) -> Report:
    return Report(
        protocol=TELEMETRY_PROTOCOL, boot_id=boot_id, seq=seq, at_ms=at_ms, schema=SCHEMA, events=events[:MAX_EVENTS]
    )


def gpu_report(check: GpuCheck, signs: SignsOfLife | None = None) -> GpuReport:
    """Return the report on one GPU. ``signs``: as in ``sample_report``."""
    return GpuReport(
        uuid=check.gpu_uuid,
        values=[_fit(value) for value in check.values],
        is_lost=check.is_lost,
        from_dcgm=tuple(sorted(check.from_dcgm)),
        is_late=signs is not None and check.is_unanswered,
        latency_ms=None if check.latency_ms is None else round(check.latency_ms, 1),
        ages_s={} if signs is None else signs.gpu_ages_s(check.gpu_uuid),
    )


def _fit(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and abs(value) <= _MAX_VALUE else None


def event_report(event: ProbeEvent, boot_id: str, *, is_open: bool) -> EventReport:
    return EventReport(
        event_id=_event_id(boot_id, event.origin),
        kind=event.kind.value,
        source=_WIRE_SOURCES.get(event.source, "agent"),
        at_ms=max(0, event.at_ms),
        gpu_uuid=None if event.gpu_uuid is None else _clean(event.gpu_uuid, 128),
        code=event.code if event.code is not None and 0 <= event.code <= 100_000 else None,
        text=_clean(event.text, 1024),
        values={_clean(name, 128): fit for name, value in event.values.items() if (fit := _fit(value)) is not None},
        is_open=is_open,
    )


def _event_id(boot_id: str, origin: str) -> str:
    """Return an id that is the same after a restart; a long one keeps its beginning and a digest of the whole."""
    text = _clean(f"{boot_id}:{origin}", 4096)
    if len(text) <= _MAX_ID:
        return text
    return f"{text[:160]}#{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _clean(text: str, limit: int) -> str:
    """Return the text without characters that databases and JSON cannot hold: U+0000, lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")[:limit]


class OpenEvents:
    """Conditions that last: repeated in each report until they are over.

    A lost GPU is open until it is found again; a count of GPUs until it is again what it was before.
    """

    def __init__(self) -> None:
        self._open: dict[str, EventReport] = {}

    def __iter__(self) -> Iterator[EventReport]:
        return iter(tuple(self._open.values()))

    def take(self, event: ProbeEvent, boot_id: str) -> tuple[EventReport, ...]:
        """Return the reports of an event: itself, and before it the end of the one that it closes."""
        if event.kind is EventKind.GPU_LOST:
            fresh = event_report(event, boot_id, is_open=True)
            self._open[f"gpu_lost:{event.gpu_uuid}"] = fresh
            return (fresh,)
        if event.kind is EventKind.GPU_FOUND:
            return (*self._closed(f"gpu_lost:{event.gpu_uuid}"), event_report(event, boot_id, is_open=False))
        if event.kind is EventKind.GPU_COUNT:
            return self._counted(event, boot_id)
        return (event_report(event, boot_id, is_open=False),)

    def _counted(self, event: ProbeEvent, boot_id: str) -> tuple[EventReport, ...]:
        before = self._open.get("gpu_count")
        usual = before.values.get("before") if before else event.values.get("before")
        is_open = usual is not None and event.values.get("now") != usual
        closed = self._closed("gpu_count")
        fresh = event_report(event, boot_id, is_open=is_open)
        if is_open and usual is not None:
            fresh = msgspec.structs.replace(fresh, values={**fresh.values, "before": usual})
            self._open["gpu_count"] = fresh
        return (*closed, fresh)

    def _closed(self, key: str) -> tuple[EventReport, ...]:
        found = self._open.pop(key, None)
        return () if found is None else (msgspec.structs.replace(found, is_open=False),)
