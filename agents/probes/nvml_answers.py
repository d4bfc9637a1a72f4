"""The driver's answers about one GPU as checks and inspections: an answer, an error, or none within the deadline."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from agents.probes.deadline import NoAnswerError
from agents.probes.interface import WHOLE_GPU, GpuCheck, GpuInspection
from agents.probes.nvml_inspection import Inspected
from agents.probes.nvml_readings import Polled
from agents.probes.nvml_sheet import GpuLostError
from muster.domain.ids import GpuUuid


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer of the driver, and how long the call took."""

    polled: Polled
    latency_ms: float


def timed(work: Callable[[], Polled]) -> Timed:
    """Make one call to the driver, and measure it."""
    began_s = time.monotonic()
    polled = work()
    return Timed(polled, (time.monotonic() - began_s) * 1000)


def check_of(uuid: GpuUuid, index: int, now_ms: int, answer: Timed | BaseException | None) -> GpuCheck:
    """Return the check. ``answer`` is None where the driver no longer lists the GPU."""
    found = GpuCheck(gpu_uuid=uuid, index=index, at_ms=now_ms)
    if isinstance(answer, Timed):
        told = answer.polled
        return replace(
            found,
            values=told.values,
            unsupported=told.unsupported,
            faults=told.faults,
            latency_ms=answer.latency_ms,
        )
    if answer is None:
        return replace(found, is_lost=True, faults={WHOLE_GPU: "the driver no longer lists it"})
    faults = {WHOLE_GPU: str(answer) or type(answer).__name__}
    if isinstance(answer, GpuLostError):
        return replace(found, is_lost=True, faults=faults)
    if isinstance(answer, NoAnswerError):
        return replace(found, is_late=True, faults=faults, latency_ms=answer.waited_s * 1000)
    return replace(found, faults=faults)


def inspection_of(uuid: GpuUuid, index: int, answer: Inspected | BaseException) -> GpuInspection:
    """Return the inspection."""
    if isinstance(answer, BaseException):
        return GpuInspection(
            gpu_uuid=uuid,
            index=index,
            faults={WHOLE_GPU: str(answer) or type(answer).__name__},
            is_lost=isinstance(answer, GpuLostError),
            is_late=isinstance(answer, NoAnswerError),
        )
    return GpuInspection(
        gpu_uuid=uuid,
        index=index,
        state=answer.state,
        words=answer.words,
        counters=answer.counters,
        link_counters=answer.link_counters,
        alongside=answer.alongside,
        unsupported=answer.unsupported,
        faults=answer.faults,
    )
