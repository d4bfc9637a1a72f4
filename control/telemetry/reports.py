"""A report on its way through the server: as it came in, and what became of it.

Structs of msgspec: one is made for every report, in a third of a frozen dataclass's time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from muster.domain.errors import MusterError
from muster.domain.evidence.findings import GpuSample
from muster.domain.ids import GpuUuid, KeyId, NodeId
from muster.wire.telemetry import GpuReport, Report

CLOCK_TOLERANCE_MS: Final = 5 * 60_000
OLDEST_HISTORY_MS: Final = 48 * 3_600_000
"""Twice what an agent's spool keeps."""


class SetAside(Struct, frozen=True):
    """What of a report is no reading, and was left out of it: samples of these GPUs, so many values of its events."""

    gpu_uuids: tuple[str, ...]
    num_values: int

    @staticmethod
    def of(gpu_uuids: tuple[str, ...], num_values: int) -> "SetAside | None":
        """None where all of it is readable."""
        return SetAside(gpu_uuids, num_values) if gpu_uuids or num_values else None


class IncomingReport(Struct, frozen=True):
    """A report that reads well, of an authenticated node. ``key_id`` is asked again as it is stored."""

    node_id: NodeId
    key_id: KeyId | None
    report: Report
    received_ms: int
    set_aside: SetAside | None = None

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.node_id, self.report.boot_id, self.report.seq

    @property
    def is_skewed(self) -> bool:
        """Whether the agent's clock is not to be believed."""
        oldest_ms = self.received_ms - (OLDEST_HISTORY_MS if self.report.is_history else CLOCK_TOLERANCE_MS)
        return not oldest_ms <= self.report.at_ms <= self.received_ms + CLOCK_TOLERANCE_MS

    @property
    def placed_ms(self) -> int:
        """Where history places it: its own time, or that of its receipt where the clock cannot be believed."""
        return self.received_ms if self.is_skewed else self.report.at_ms


class FreshReport(Struct):
    """One that has not come before, with its node's own GPUs of those it speaks of."""

    position: int
    incoming: IncomingReport
    gpus: tuple[GpuReport, ...]
    gpu_uuids: Sequence[str]
    unknown_gpus: tuple[str, ...] = ()
    boot_order: int | None = None
    """None: it only fills history."""


class AcceptedReport(Struct, frozen=True):
    """A report that is durable. Duplicates are not handed on.

    ``is_current``: it moved latest state; otherwise it only filled history. ``unknown_gpus``: UUIDs that no node has
    enrolled; their readings are not kept.
    """

    node_id: NodeId
    report: Report
    received_ms: int
    is_current: bool
    is_skewed: bool
    unknown_gpus: tuple[str, ...] = ()

    @property
    def samples(self) -> tuple[GpuSample, ...]:
        return tuple(
            GpuSample(GpuUuid(gpu.uuid), self.report.at_ms, tuple(gpu.values), gpu.is_lost, frozenset(gpu.from_dcgm))
            for gpu in self.report.gpus
            if gpu.uuid not in self.unknown_gpus
        )


@dataclass(frozen=True, slots=True)
class Duplicate:
    """It has come before, and has no effect now."""


Outcome = AcceptedReport | Duplicate | MusterError
"""A ``MusterError``: nothing of the report was stored."""

OnFlushed = Callable[[Sequence[AcceptedReport]], None]
"""Called after each commit, in the flusher's thread: what takes long holds up the next group."""
