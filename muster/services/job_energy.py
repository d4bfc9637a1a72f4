"""What energy a job's attempts took, from what the agents stored of their GPUs' counters. Measured, not reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
from sqlalchemy import select

from muster.db.models import Allocation, AllocationGpu, Attempt, Gpu
from muster.domain.energy import Metered, metered
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.metrics import INDEX
from muster.domain.pace import pace_of
from muster.services import jobs
from muster.services.lives import to_ms
from muster.services.telemetry.history import Samples, samples_of_all
from muster.services.training_views import ranks_of
from muster.services.unit_of_work import UnitOfWork

MOST_GPU_HOURS: Final = 200.0
"""Of history that one request reads; older attempts than that are left unmeasured, and said so."""
_AROUND: Final = timedelta(minutes=1)
"""Readings so far outside an attempt still bound it."""
TOO_MUCH: Final = "too much history for one request"


@dataclass(frozen=True, slots=True)
class AttemptEnergy:
    """``energy_j`` is the sum over the GPUs that have a counter, ``num_metered``; None where none has.

    ``gpu_seconds`` lie between readings, of ``held_gpu_seconds`` in all. ``why``: what is missing, in words.
    ``tokens_per_j``: by its newest pace; None unless each rank told tokens and each GPU was metered.
    """

    attempt_id: AttemptId
    number: int
    num_gpus: int
    num_metered: int
    energy_j: float | None
    gpu_seconds: float
    held_gpu_seconds: float
    is_simulated: bool
    why: str
    tokens_per_j: float | None = None


def energy_of(unit: UnitOfWork, job_id: JobId) -> list[AttemptEnergy]:
    """Of each attempt of a visible job, in their order. Raises NotFoundError."""
    job = jobs.get(unit, job_id)
    newest = select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number.desc())
    found: list[AttemptEnergy] = []
    hours_left = MOST_GPU_HOURS
    rate = _tokens_per_s(unit, job_id)
    for attempt in unit.session.scalars(newest).all():
        gpus = _gpus_of(unit, attempt.id)
        since, until = attempt.running_at or attempt.claimed_at, attempt.ended_at or unit.now
        hours = 0.0 if since is None else len(gpus) * (until - since).total_seconds() / 3600
        is_read = since is not None and hours <= hours_left
        hours_left -= hours
        figures = _figures(unit, gpus, since, until) if since is not None and is_read else []
        told = rate[1] if rate is not None and rate[0] == attempt.id else None
        found.append(_summed(attempt, gpus, figures, hours * 3600, told, is_read=is_read or since is None))
    return found[::-1]


def _gpus_of(unit: UnitOfWork, attempt_id: AttemptId) -> list[tuple[GpuUuid, NodeId, bool]]:
    """(UUID, where it was then, whether it is simulated)."""
    query = (
        select(AllocationGpu.gpu_uuid, AllocationGpu.node_id, Gpu.is_simulated)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Gpu, Gpu.uuid == AllocationGpu.gpu_uuid)
        .where(Allocation.attempt_id == attempt_id)
        .order_by(AllocationGpu.node_rank, AllocationGpu.local_index)
    )
    return [(row[0], row[1], row[2]) for row in unit.session.execute(query)]


def _figures(
    unit: UnitOfWork, gpus: Sequence[tuple[GpuUuid, NodeId, bool]], since: datetime, until: datetime
) -> list[Metered | None]:
    """A node's readings are read once for all of its GPUs."""
    found: list[Metered | None] = []
    for node_id in dict.fromkeys(node for _, node, _ in gpus):
        on_node = [uuid for uuid, node, _ in gpus if node == node_id]
        samples = samples_of_all(unit, on_node, {node_id}, since - _AROUND, until + _AROUND)
        found += [_metered(samples[uuid], since, until) for uuid in on_node]
    return found


def _metered(samples: Samples, since: datetime, until: datetime) -> Metered | None:
    times_ms, values = samples
    counted = values[:, INDEX["energy_j"]]
    is_there = np.isfinite(counted)
    points = list(zip(times_ms[is_there].tolist(), counted[is_there].astype(float).tolist(), strict=True))
    return metered(points, to_ms(since), to_ms(until))


def _tokens_per_s(unit: UnitOfWork, job_id: JobId) -> tuple[AttemptId, float] | None:
    """Of the newest attempt that spoke, by all of its ranks."""
    ranks = ranks_of(unit, job_id)
    pace = pace_of([row.pace for row in ranks])
    is_whole = bool(ranks) and len(ranks) == ranks[0].world_size
    return (ranks[0].attempt_id, pace.tokens_per_s) if is_whole and pace is not None and pace.tokens_per_s else None


def _summed(
    attempt: Attempt,
    gpus: Sequence[tuple[GpuUuid, NodeId, bool]],
    figures: Sequence[Metered | None],
    held_gpu_seconds: float,
    tokens_per_s: float | None,
    *,
    is_read: bool,
) -> AttemptEnergy:
    known = [each for each in figures if each is not None]
    energy_j = sum(each.energy_j for each in known) if known else None
    gpu_seconds = sum(each.seconds for each in known)
    is_whole = bool(known) and len(known) == len(gpus)
    watts = energy_j / gpu_seconds * len(gpus) if energy_j and is_whole else None
    return AttemptEnergy(
        attempt.id,
        attempt.number,
        len(gpus),
        len(known),
        energy_j,
        gpu_seconds,
        held_gpu_seconds,
        any(is_simulated for _, _, is_simulated in gpus),
        _why(known, len(gpus), is_read=is_read),
        tokens_per_s / watts if tokens_per_s and watts else None,
    )


def _why(known: Sequence[Metered], num_gpus: int, *, is_read: bool) -> str:
    if not is_read:
        return TOO_MUCH
    said = []
    if len(known) < num_gpus:
        said.append(f"{num_gpus - len(known)} of {num_gpus} GPUs have no readings of an energy counter in that time")
    if any(each.is_partial for each in known):
        said.append("a counter began anew meanwhile")
    return "; ".join(said)
