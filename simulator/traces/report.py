"""The results of a played trace: waits, completion times, utilisation, and starved jobs."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.queue.order import LEAST_RUN_S
from simulator.traces.course import Cause
from simulator.traces.jobs import TraceJob
from simulator.traces.losses import LostHours, Span, idle_by_level, lost_hours, over_time
from simulator.traces.playing import Played

GPU_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The least GPUs of each class of waits; the last is open."""
STARVED_AFTER_S: Final = 7 * 86_400
"""A job starves if it starts so much later than in strict order of submission: others went before it for so long."""


@dataclass(frozen=True, slots=True)
class SizeWaits:
    """Waits of a class of sizes. ``max_gpus`` is None for the last, open class."""

    min_gpus: int
    max_gpus: int | None
    jobs: int
    mean_wait_s: float
    p95_wait_s: float


@dataclass(frozen=True, slots=True)
class LevelFragments:
    """Idle time that a level fragments.

    ``of_idle``: the share of the GPUs' idle time in domains of ``level`` partly in use, and not yet counted by a
    narrower level: on such nodes; on other nodes of such racks.
    """

    level: str
    of_idle: float


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Fragmentation of the fleet.

    ``idle_while_waiting``: the share of the GPUs' time that was idle while a job was pending; ``scattered``: the share
    of that on nodes partly in use. ``split_gangs``: how many of the gangs that one rack could hold ran in several.
    ``by_level``: node, and rack where racks are known.
    """

    idle_while_waiting: float
    scattered: float
    rack_sized_gangs: int
    split_gangs: int
    by_level: tuple[LevelFragments, ...]


@dataclass(frozen=True, slots=True)
class TenantWaits:
    """Waits of a tenant. ``mean_slowdown``: completion ÷ duration, of which no less than a minute counts."""

    tenant: str
    jobs: int
    gpu_hours: float
    mean_wait_s: float
    mean_slowdown: float


@dataclass(frozen=True, slots=True)
class SizeEttr:
    """ETTR of a class of sizes. ``max_gpus`` is None for the last, open class. ``ettr``: see ``Report``."""

    min_gpus: int
    max_gpus: int | None
    interruptions: int
    ettr: float


@dataclass(frozen=True, slots=True)
class Reclaims:
    """Reclaims of one tenant in one tier: how often its jobs left for a higher tier, and the work done again."""

    tenant: str
    tier: str
    reclaims: int
    gpu_hours_lost: float


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one trace.

    ``utilisation``: GPU-seconds that jobs requested and had, as a share of all between the first submission and the
    last end; ``goodput``: the share of all that was work and had not to be done again. ``makespan_s``: from the first
    submission to the last end. ``starved``: see ``STARVED_AFTER_S``. ``fairness``: Jain's index of the tenants' mean
    slowdowns, 1 where they are equal (Jain, Chiu and Hawe, 1984). ``ettr``: the share of a job's own work in the time
    from its first start to its end, each job by its GPUs (effective training time ratio; Kokolis et al., HPCA 2025,
    whose wait before the first start is left out here). ``interruptions``: of jobs, by failures of nodes and by
    reclaims.
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
    goodput: float
    ettr: float
    ettr_by_gpus: tuple[SizeEttr, ...]
    failures: int
    interruptions: int
    lost_gpu_hours: LostHours
    reclaims: tuple[Reclaims, ...]
    over_time: tuple[Span, ...]


def report_of(
    jobs: Sequence[TraceJob], played: Played, in_order: Played, *, num_gpus: int, nodes_per_rack: int | None = None
) -> Report:
    """Return the report. ``in_order``: the same jobs by strict order of submission on the same fleet."""
    by_tenant, lost = _by_tenant(jobs, played), lost_hours(jobs, played)
    waits = [start - job.submit_s for job, start in zip(jobs, played.started_s, strict=True)]
    makespan_s = played.end_s - jobs[0].submit_s
    fleet_gpu_s = makespan_s * num_gpus
    gpu_s = sum(job.gpus * job.duration_s for job in jobs)
    held_gpu_s = sum(job.gpus * held_s for job, held_s in zip(jobs, played.work.busy_s, strict=True))
    jcts = [end_s - job.submit_s for job, end_s in zip(jobs, played.finished_s, strict=True)]
    return Report(
        jobs=len(jobs),
        mean_wait_s=_mean(waits),
        p95_wait_s=_p95(waits),
        mean_jct_s=_mean(jcts),
        makespan_s=makespan_s,
        utilisation=held_gpu_s / fleet_gpu_s if makespan_s else 0.0,
        wait_by_gpus=tuple(_by_size(jobs, waits)),
        starved=sum(
            start - other > STARVED_AFTER_S for start, other in zip(played.started_s, in_order.started_s, strict=True)
        ),
        p95_jct_s=_p95(jcts),
        fragmentation=_fragmentation(jobs, played, lost, fleet_gpu_s, nodes_per_rack),
        by_tenant=by_tenant,
        fairness=_jain([tenant.mean_slowdown for tenant in by_tenant]),
        goodput=gpu_s / fleet_gpu_s if makespan_s else 0.0,
        ettr=_ettr(jobs, played, range(len(jobs))),
        ettr_by_gpus=tuple(_ettr_by_size(jobs, played)),
        failures=played.num_failures,
        interruptions=len(played.interruptions),
        lost_gpu_hours=lost,
        reclaims=_reclaims(jobs, played),
        over_time=over_time(played, num_gpus),
    )


def _ettr(jobs: Sequence[TraceJob], played: Played, numbers: Sequence[int]) -> float:
    """Return the ETTR of these jobs; 1 if none of them takes any time."""
    work = sum(jobs[number].gpus * jobs[number].duration_s for number in numbers)
    run = sum(jobs[number].gpus * (played.finished_s[number] - played.started_s[number]) for number in numbers)
    return min(work / run, 1.0) if run else 1.0


def _ettr_by_size(jobs: Sequence[TraceJob], played: Played) -> list[SizeEttr]:
    interrupted = Counter(one.number for one in played.interruptions)
    return [
        SizeEttr(least, most, sum(interrupted[number] for number in numbers), _ettr(jobs, played, numbers))
        for least, most, numbers in _classes(jobs)
    ]


def _reclaims(jobs: Sequence[TraceJob], played: Played) -> tuple[Reclaims, ...]:
    lost: dict[tuple[str, str], list[float]] = {}
    for one in played.interruptions:
        if one.cause is Cause.RECLAIM:
            job = jobs[one.number]
            lost.setdefault((job.tenant, job.tier), []).append(one.lost_s * job.gpus / 3600)
    return tuple(Reclaims(*whose, len(hours), sum(hours)) for whose, hours in sorted(lost.items()))


def _fragmentation(
    jobs: Sequence[TraceJob], played: Played, lost: LostHours, fleet_gpu_s: float, nodes_per_rack: int | None
) -> Fragmentation:
    idle = lost.idle_scattered + lost.idle_whole_nodes
    fitting = [
        racks
        for job, racks in zip(jobs, played.num_racks, strict=True)
        if nodes_per_rack is not None and 1 < job.num_nodes <= nodes_per_rack
    ]
    return Fragmentation(
        idle_while_waiting=idle * 3600 / fleet_gpu_s if fleet_gpu_s else 0.0,
        scattered=lost.idle_scattered / idle if idle else 0.0,
        rack_sized_gangs=len(fitting),
        split_gangs=sum(racks > 1 for racks in fitting),
        by_level=tuple(
            LevelFragments(level, of_idle)
            for level, of_idle in idle_by_level(played).items()
            if level == "node" or nodes_per_rack is not None
        ),
    )


def _by_tenant(jobs: Sequence[TraceJob], played: Played) -> tuple[TenantWaits, ...]:
    own: dict[str, list[tuple[TraceJob, float, float]]] = {}
    for job, start_s, end_s in zip(jobs, played.started_s, played.finished_s, strict=True):
        own.setdefault(job.tenant, []).append((job, start_s - job.submit_s, end_s - job.submit_s))
    return tuple(
        TenantWaits(
            tenant=tenant,
            jobs=len(told),
            gpu_hours=sum(job.gpus * job.duration_s for job, _, _ in told) / 3600,
            mean_wait_s=_mean([wait for _, wait, _ in told]),
            mean_slowdown=_mean([jct / max(job.duration_s, LEAST_RUN_S) for job, _, jct in told]),
        )
        for tenant, told in sorted(own.items())
    )


def _jain(values: Sequence[float]) -> float:
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 1.0


def _classes(jobs: Sequence[TraceJob]) -> list[tuple[int, int | None, list[int]]]:
    """Return the least and most GPUs of each class that has jobs, and these jobs' numbers."""
    found = []
    for least, above in zip(GPU_COUNTS, (*GPU_COUNTS[1:], None), strict=True):
        top = math.inf if above is None else above
        numbers = [number for number, job in enumerate(jobs) if least <= job.gpus < top]
        if numbers:
            found.append((least, None if above is None else above - 1, numbers))
    return found


def _by_size(jobs: Sequence[TraceJob], waits: Sequence[float]) -> list[SizeWaits]:
    return [
        SizeWaits(least, most, len(own), _mean(own), _p95(own))
        for least, most, numbers in _classes(jobs)
        for own in [[waits[number] for number in numbers]]
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _p95(values: Sequence[float]) -> float:
    """Return the value that 95 % of them do not exceed: nearest rank."""
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]
