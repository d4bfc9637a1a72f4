"""What a played trace came to: waits, completion times, utilisation, and who starved."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.traces.jobs import TraceJob
from simulator.traces.playing import Played

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The least GPUs of each class of waits; the last is open."""
STARVED_AFTER_S: Final = 7 * 86_400
"""A job starves that starts so much later than in strict order of submission: others went before it for so long."""


@dataclass(frozen=True, slots=True)
class SizeWaits:
    """``max_gpus`` is None for the last, open class."""

    min_gpus: int
    max_gpus: int | None
    jobs: int
    mean_wait_s: float
    p95_wait_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """``utilisation``: GPU-seconds that jobs asked for and had, of all between the first submission and the last end.

    ``makespan_s``: from the first submission to the last end. ``starved``: see ``STARVED_AFTER_S``.
    """

    jobs: int
    mean_wait_s: float
    p95_wait_s: float
    mean_jct_s: float
    makespan_s: float
    utilisation: float
    wait_by_gpus: tuple[SizeWaits, ...]
    starved: int


def report_of(jobs: Sequence[TraceJob], played: Played, in_order: Played, *, num_gpus: int) -> Report:
    """``in_order``: the same jobs by strict order of submission on the same fleet."""
    waits = [start - job.submit_s for job, start in zip(jobs, played.started_s, strict=True)]
    makespan_s = played.end_s - jobs[0].submit_s
    gpu_s = sum(job.gpus * job.duration_s for job in jobs)
    return Report(
        jobs=len(jobs),
        mean_wait_s=_mean(waits),
        p95_wait_s=_p95(waits),
        mean_jct_s=_mean(waits) + _mean([job.duration_s for job in jobs]),
        makespan_s=makespan_s,
        utilisation=gpu_s / (makespan_s * num_gpus) if makespan_s else 0.0,
        wait_by_gpus=tuple(_by_size(jobs, waits)),
        starved=sum(
            start - other > STARVED_AFTER_S for start, other in zip(played.started_s, in_order.started_s, strict=True)
        ),
    )


def _by_size(jobs: Sequence[TraceJob], waits: Sequence[float]) -> list[SizeWaits]:
    """Only classes that have jobs."""
    found = []
    for least, above in zip(SIZES, (*SIZES[1:], None), strict=True):
        top = math.inf if above is None else above
        own = [wait for job, wait in zip(jobs, waits, strict=True) if least <= job.gpus < top]
        if own:
            found.append(SizeWaits(least, None if above is None else above - 1, len(own), _mean(own), _p95(own)))
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _p95(values: Sequence[float]) -> float:
    """The value that 95 % of them do not exceed: nearest rank."""
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]
