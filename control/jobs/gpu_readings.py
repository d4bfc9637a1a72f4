"""Readings of a job's GPUs over the time of its newest attempt, next to the times of its steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWork
from control.jobs.read import row_of
from control.jobs.training_views import TrainingStepRecord, steps_since
from control.telemetry.downsample import Points, downsample
from control.telemetry.history import Samples, samples_of_all
from muster.db.models import Allocation, AllocationGpu, Attempt, Node
from muster.domain.gpu.metrics import INDEX, METRICS, Metric
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.times import to_ms

GPUS_READ: Final = 8
MOST_SPAN: Final = timedelta(hours=6)
"""One answer reads at most ``GPUS_READ`` GPUs for so long, the newest part of an attempt: 48 GPU hours."""
POINTS: Final = 240
METRICS_READ: Final = (
    "sm_clock_mhz",
    "temperature_c",
    "power_w",
    "utilisation_percent",
    "tensor_active_percent",
    "nvlink_sent_bytes_per_s",
    "nvlink_received_bytes_per_s",
)


@dataclass(frozen=True, slots=True)
class GpuLine:
    """The readings of one GPU by metric. Point n covers ``step_s`` from ``since`` + n · ``step_s`` on."""

    node_name: str
    local_index: int
    values: dict[str, Points]


@dataclass(frozen=True, slots=True)
class AttemptReadings:
    """The readings within a time of an attempt. ``num_gpus``: all of it; ``gpus`` may have only some of them."""

    number: int
    since: datetime
    until: datetime
    step_s: float
    num_gpus: int
    gpus: Sequence[GpuLine]
    steps: Sequence[TrainingStepRecord]


def readings_of_attempt(unit: UnitOfWork, job_id: JobId, *, first: NodeId | None = None) -> AttemptReadings | None:
    """Return the readings of a visible job's newest attempt that ran; None without one.

    ``first``: the host whose GPUs come first, such as one that a verdict names. Readings outside the attempt are left
    out: the GPU may have been another tenant's.
    """
    job = row_of(unit, job_id)
    newest = select(Attempt).where(Attempt.job_id == job.id, Attempt.running_at.is_not(None))
    attempt = unit.session.scalar(newest.order_by(Attempt.number.desc()).limit(1))
    if attempt is None or attempt.running_at is None:
        return None
    until = attempt.ended_at or unit.now
    since = max(attempt.running_at, until - MOST_SPAN)
    step_s = max((until - since).total_seconds() / POINTS, 1.0)
    gpus = _gpus_of(unit, attempt.id, first)
    samples = samples_of_all(unit, [uuid for uuid, *_ in gpus], {node for _, node, *_ in gpus}, since, until)
    return AttemptReadings(
        attempt.number,
        since,
        until,
        step_s,
        _num_gpus(unit, attempt.id),
        [GpuLine(name, local, _downsampled(samples[uuid], since, step_s)) for uuid, _, name, local in gpus],
        steps_since(unit, attempt.id, since, points=POINTS),
    )


def _gpus_of(unit: UnitOfWork, attempt_id: AttemptId, first: NodeId | None) -> list[tuple[GpuUuid, NodeId, str, int]]:
    """Return the first GPUs in the order of ranks, after the GPUs of the host ``first``."""
    placed = select(Allocation.id).where(Allocation.attempt_id == attempt_id).scalar_subquery()
    query = (
        select(AllocationGpu.gpu_uuid, AllocationGpu.node_id, Node.name, AllocationGpu.local_index)
        .join(Node, Node.id == AllocationGpu.node_id)
        .where(AllocationGpu.allocation_id == placed)
        .order_by(AllocationGpu.node_rank, AllocationGpu.local_index)
        .limit(GPUS_READ)
    )
    chosen = [] if first is None else list(unit.session.execute(query.where(AllocationGpu.node_id == first)))
    others = unit.session.execute(query) if len(chosen) < GPUS_READ else ()
    found = {row[0]: (row[0], row[1], row[2], row[3]) for row in (*chosen, *others)}
    return list(found.values())[:GPUS_READ]


def _num_gpus(unit: UnitOfWork, attempt_id: AttemptId) -> int:
    counted = select(func.count()).where(AllocationGpu.allocation_id == Allocation.id).scalar_subquery()
    query = select(func.coalesce(Allocation.num_gpus, counted)).where(Allocation.attempt_id == attempt_id)
    return unit.session.scalar(query) or 0


def _downsampled(samples: Samples, since: datetime, step_s: float) -> dict[str, Points]:
    times_ms, values = samples
    bins = ((times_ms - to_ms(since)) / (step_s * 1000)).astype(np.int64)
    num_bins = max(POINTS, int(bins.max(initial=0)) + 1)
    return {metric.name: downsample(metric.kind, bins, values[:, INDEX[metric.name]], num_bins) for metric in _read()}


def _read() -> Sequence[Metric]:
    return [METRICS[INDEX[name]] for name in METRICS_READ]
