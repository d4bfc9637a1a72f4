"""The sample before, of each GPU: what counters and rates are judged against. 270 bytes a GPU."""

import struct
from collections.abc import Iterable
from datetime import datetime
from math import isnan
from typing import Final

from muster.domain.evidence import GpuSample
from muster.domain.ids import GpuUuid
from muster.domain.metrics import NUM_METRICS
from muster.services.lives import to_ms
from muster.wire.telemetry import GpuReport

_SAMPLE: Final = struct.Struct(f"<q?{NUM_METRICS}d")
_NAN: Final = float("nan")


class PreviousSamples:
    """Kept by this process; filled from latest state the first time that a GPU is heard here."""

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}

    def missing(self, uuids: Iterable[str]) -> set[str]:
        return {uuid for uuid in uuids if uuid not in self._packed}

    def load(self, rows: Iterable[tuple[str, datetime, list[float], bool]]) -> None:
        for uuid, at, values, is_lost in rows:
            if len(values) == NUM_METRICS:
                self._packed[uuid] = _SAMPLE.pack(to_ms(at), is_lost, *values)

    def exchange(self, gpu: GpuReport, at_ms: int) -> GpuSample | None:
        """Keeps this sample, and returns the one before."""
        before = self._packed.get(gpu.uuid)
        values = [_NAN if value is None else value for value in gpu.values]
        self._packed[gpu.uuid] = _SAMPLE.pack(at_ms, gpu.is_lost, *values)
        if before is None:
            return None
        before_ms, is_lost, *numbers = _SAMPLE.unpack(before)
        readings = tuple(None if isnan(number) else number for number in numbers)
        return GpuSample(GpuUuid(gpu.uuid), before_ms, readings, is_lost)
