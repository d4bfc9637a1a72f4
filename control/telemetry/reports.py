"""A report in the server: as it arrived, and its outcome.

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
"""Greatest age of history: twice the time that an agent's spool keeps."""


class SetAside(Struct, frozen=True):
    """Parts of a report that are no readings and were left out: samples of these GPUs, and values of its events."""

    gpu_uuids: tuple[str, ...]
    num_values: int

    @staticmethod
    def of(gpu_uuids: tuple[str, ...], num_values: int) -> "SetAside | None":
        """Return the parts, or None where all of it is readable."""
        return SetAside(gpu_uuids, num_values) if gpu_uuids or num_values else None


class IncomingReport(Struct, frozen=True):
    """A readable report of an authenticated node. ``key_id`` is checked again when the report is stored."""

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
        """True if the agent's clock is too far off to be trusted."""
        oldest_ms = self.received_ms - (OLDEST_HISTORY_MS if self.report.is_history else CLOCK_TOLERANCE_MS)
        return not oldest_ms <= self.report.at_ms <= self.received_ms + CLOCK_TOLERANCE_MS

    @property
    def placed_ms(self) -> int:
        """The time at which history places it: its own, or that of its receipt where the clock cannot be trusted."""
        return self.received_ms if self.is_skewed else self.report.at_ms


class FreshReport(Struct):
    """A report that has not come before. ``gpus``: only its node's own GPUs."""

    position: int
    incoming: IncomingReport
    gpus: tuple[GpuReport, ...]
    gpu_uuids: Sequence[str]
    unknown_gpus: tuple[str, ...] = ()
    boot_order: int | None = None
    """Order of the boot; None: the report only fills history."""


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
"""Callback after each commit, in the flusher's thread: a slow one delays the next group."""
