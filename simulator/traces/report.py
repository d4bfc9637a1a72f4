"""What a played trace came to: waits, completion times, utilisation, and who starved."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.order import LEAST_RUN_S
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
class Fragmentation:
    """``idle_while_waiting``: of the GPUs' time, how much was idle while anybody waited; ``scattered``: how much of
    that was on nodes partly in use. ``split_gangs``: of the gangs that one rack could hold, how many ran in several.
    """

    idle_while_waiting: float
    scattered: float
    rack_sized_gangs: int
    split_gangs: int


@dataclass(frozen=True, slots=True)
class TenantWaits:
    """``mean_slowdown``: completion ÷ duration, of which no less than a minute counts."""

    tenant: str
    jobs: int
    gpu_hours: float
    mean_wait_s: float
    mean_slowdown: float


@dataclass(frozen=True, slots=True)
class Report:
    """``utilisation``: GPU-seconds that jobs asked for and had, of all between the first submission and the last end.

    ``makespan_s``: from the first submission to the last end. ``starved``: see ``STARVED_AFTER_S``. ``fairness``:
    Jain's index of the tenants' mean slowdowns, 1 where they are equal (Jain, Chiu and Hawe, 1984).
    """

    jobs: int
    mean_wait_s: float
    p95_wait_s: float
    mean_jct_s: float
    makespan_s: float
    utilisation: float
    wait_by_gpus: tuple[SizeWaits, ...]
    starved: int
    p95_jct_s: float
    fragmentation: Fragmentation
    by_tenant: tuple[TenantWaits, ...]
    fairness: float


def report_of(
    jobs: Sequence[TraceJob], played: Played, in_order: Played, *, num_gpus: int, nodes_per_rack: int | None = None
) -> Report:
    """``in_order``: the same jobs by strict order of submission on the same fleet."""
    by_tenant = _by_tenant(jobs, played)
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
        p95_jct_s=_p95([wait + job.duration_s for job, wait in zip(jobs, waits, strict=True)]),
        fragmentation=_fragmentation(jobs, played, makespan_s * num_gpus, nodes_per_rack),
        by_tenant=by_tenant,
        fairness=_jain([tenant.mean_slowdown for tenant in by_tenant]),
    )


def _fragmentation(
    jobs: Sequence[TraceJob], played: Played, fleet_gpu_s: float, nodes_per_rack: int | None
) -> Fragmentation:
    fitting = [
        racks
        for job, racks in zip(jobs, played.num_racks, strict=True)
        if nodes_per_rack is not None and 1 < job.num_nodes <= nodes_per_rack
    ]
    return Fragmentation(
        idle_while_waiting=played.idle_gpu_s / fleet_gpu_s if fleet_gpu_s else 0.0,
        scattered=played.scattered_gpu_s / played.idle_gpu_s if played.idle_gpu_s else 0.0,
        rack_sized_gangs=len(fitting),
        split_gangs=sum(racks > 1 for racks in fitting),
    )


def _by_tenant(jobs: Sequence[TraceJob], played: Played) -> tuple[TenantWaits, ...]:
    own: dict[str, list[tuple[TraceJob, float]]] = {}
    for job, start_s in zip(jobs, played.started_s, strict=True):
        own.setdefault(job.tenant, []).append((job, start_s - job.submit_s))
    return tuple(
        TenantWaits(
            tenant=tenant,
            jobs=len(told),
            gpu_hours=sum(job.gpus * job.duration_s for job, _ in told) / 3600,
            mean_wait_s=_mean([wait for _, wait in told]),
            mean_slowdown=_mean([(wait + job.duration_s) / max(job.duration_s, LEAST_RUN_S) for job, wait in told]),
        )
        for tenant, told in sorted(own.items())
    )


def _jain(values: Sequence[float]) -> float:
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 1.0


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
