"""Energy of a job's attempts, from the stored counters of their GPUs. Measured, not reported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Self

import numpy as np
from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWork
from control.jobs.read import row_of
from control.jobs.training_views import TrainingRankRecord, ranks_of
from control.telemetry.history import Samples, samples_of_all
from muster.db.models import Allocation, AllocationGpu, Attempt, Gpu, TrainingRank, TrainingStep
from muster.domain.gpu.metrics import INDEX
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.job.energy import Metered, metered
from muster.domain.job.pace import pace_of
from muster.domain.times import to_ms

MOST_GPU_HOURS: Final = 200.0
"""History that one request reads; older attempts are left unmeasured, and the answer states it."""
_AROUND: Final = timedelta(minutes=1)
"""Readings this far outside an attempt still bound it."""
TOO_MUCH: Final = "too much history for one request"
UNREAD: Final = "its history could not be read"


MOST_KEPT_GPU_HOURS: Final = 20_000.0
"""Limit for one ended attempt, such as 64 GPUs for 13 days."""
_SLICE: Final = timedelta(hours=6)
UNSUPPORTED: Final = "unsupported"
Reading = Metered | Literal["unsupported"] | None
"""Knowledge of a GPU's energy: the energy, that the GPU has no counter, or None."""
_PRESENT_NAMES: Final = {"held_gpu_seconds": "assigned_gpu_seconds"}
"""Field of a stored energy in the release before → its present name."""


@dataclass(frozen=True, slots=True)
class AttemptEnergy:
    """``energy_j`` is the sum over the GPUs that have a counter, ``num_metered``; None where none has.

    ``gpu_seconds`` are between readings, of ``assigned_gpu_seconds`` in all. ``why``: what is missing, as text.
    ``tokens_per_j``: by its newest pace; None unless each rank reported tokens and each GPU was metered.
    ``num_unsupported``: GPUs that were read in that time and have no such counter. ``num_steps``: reported steps;
    ``j_per_step``: of all its energy, so with its start and its saves; None unless each GPU was metered.
    """

    attempt_id: AttemptId
    number: int
    num_gpus: int
    num_metered: int
    energy_j: float | None
    gpu_seconds: float
    assigned_gpu_seconds: float
    is_simulated: bool
    why: str
    tokens_per_j: float | None = None
    num_unsupported: int = 0
    num_steps: int = 0

    @classmethod
    def of_kept(cls, document: Mapping[str, Any]) -> Self:
        """Return the energy stored in its row.

        Fields of a later release are ignored: an operator may have rolled back. The release before stored
        ``assigned_gpu_seconds`` as ``held_gpu_seconds``.
        """
        known = {each.name for each in fields(cls)}
        present = {_PRESENT_NAMES.get(name, name): value for name, value in document.items()}
        return cls(**{name: value for name, value in present.items() if name in known})

    @property
    def j_per_step(self) -> float | None:
        is_whole = self.energy_j is not None and self.num_metered == self.num_gpus
        return self.energy_j / self.num_steps if is_whole and self.energy_j is not None and self.num_steps else None


def energy_of(unit: UnitOfWork, job_id: JobId) -> list[AttemptEnergy]:
    """Return the energy of each attempt of a visible job, in their order. Raises NotFoundError."""
    job = row_of(unit, job_id)
    newest = select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number.desc())
    found: list[AttemptEnergy] = []
    hours_left = MOST_GPU_HOURS
    rate = _tokens_per_s(unit, job_id)
    for attempt in unit.session.scalars(newest).all():
        if attempt.energy is not None:
            found.append(AttemptEnergy.of_kept(attempt.energy))
            continue
        gpus = _gpus_of(unit, attempt.id)
        since, until = attempt.running_at or attempt.claimed_at, attempt.ended_at or unit.now
        hours = 0.0 if since is None else len(gpus) * (until - since).total_seconds() / 3600
        is_read = since is not None and hours <= hours_left
        hours_left -= hours
        figures = _figures(unit, gpus, since, until) if since is not None and is_read else []
        told = rate[1] if rate is not None and rate[0] == attempt.id else None
        found.append(_summed(unit, attempt, gpus, figures, hours * 3600, told, is_read=is_read or since is None))
    return found[::-1]


def ended_energy(unit: UnitOfWork, attempt: Attempt) -> AttemptEnergy:
    """Return the energy of an ended attempt, read in slices of time so that memory is bounded for any duration."""
    gpus = _gpus_of(unit, attempt.id)
    since, until = attempt.running_at or attempt.claimed_at, attempt.ended_at
    if since is None or until is None:
        return _summed(unit, attempt, gpus, [None] * len(gpus), 0.0, None, is_read=True)
    held_s = len(gpus) * (until - since).total_seconds()
    is_read = held_s / 3600 <= MOST_KEPT_GPU_HOURS
    figures: list[Reading] = [None] * len(gpus)
    while is_read and since < until:
        upto = min(since + _SLICE, until)
        figures = [_added(*both) for both in zip(figures, _figures(unit, gpus, since, upto), strict=True)]
        since = upto
    spoken = select(TrainingRank).where(TrainingRank.attempt_id == attempt.id).order_by(TrainingRank.rank)
    told = _rate_of(unit.session.scalars(spoken).all())
    return _summed(unit, attempt, gpus, figures, held_s, told, is_read=is_read)


def unread_energy(unit: UnitOfWork, attempt: Attempt) -> AttemptEnergy:
    """Return the energy of an ended attempt whose history cannot be read: nothing is known of it."""
    gpus = _gpus_of(unit, attempt.id)
    since, until = attempt.running_at or attempt.claimed_at, attempt.ended_at
    held_s = 0.0 if since is None or until is None else len(gpus) * (until - since).total_seconds()
    is_simulated = any(is_simulated for _, _, is_simulated in gpus)
    return AttemptEnergy(attempt.id, attempt.number, len(gpus), 0, None, 0.0, held_s, is_simulated, UNREAD)


def _added(before: Reading, after: Reading) -> Reading:
    """Return the energy of two slices together. A slice without a reading of the counter is unknown, not zero."""
    if not isinstance(before, Metered) or not isinstance(after, Metered):
        return next((each for each in (before, after) if isinstance(each, Metered)), before or after)
    partial = before.is_partial or after.is_partial
    return Metered(before.energy_j + after.energy_j, before.seconds + after.seconds, partial)


def _gpus_of(unit: UnitOfWork, attempt_id: AttemptId) -> list[tuple[GpuUuid, NodeId, bool]]:
    """Return UUID, node at that time, and whether it is simulated, of each GPU in rank order."""
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
) -> list[Reading]:
    """Return the readings in the order of ``gpus``. A node's readings are read once for all of its GPUs."""
    found: dict[GpuUuid, Reading] = {}
    for node_id in dict.fromkeys(node for _, node, _ in gpus):
        on_node = [uuid for uuid, node, _ in gpus if node == node_id]
        samples = samples_of_all(unit, on_node, {node_id}, since - _AROUND, until + _AROUND)
        found |= {uuid: _metered(samples[uuid], since, until) for uuid in on_node}
    return [found[uuid] for uuid, _, _ in gpus]


def _metered(samples: Samples, since: datetime, until: datetime) -> Reading:
    times_ms, values = samples
    counted = values[:, INDEX["energy_j"]]
    is_there = np.isfinite(counted)
    if len(counted) and not is_there.any():
        return UNSUPPORTED
    points = list(zip(times_ms[is_there].tolist(), counted[is_there].astype(float).tolist(), strict=True))
    return metered(points, to_ms(since), to_ms(until))


def _tokens_per_s(unit: UnitOfWork, job_id: JobId) -> tuple[AttemptId, float] | None:
    """Return the tokens a second of the newest attempt with reports, by all of its ranks."""
    ranks = ranks_of(unit, job_id)
    rate = _rate_of(ranks)
    return None if rate is None else (ranks[0].attempt_id, rate)


def _rate_of(ranks: Sequence[TrainingRank | TrainingRankRecord]) -> float | None:
    """Return the tokens a second of all ranks of an attempt; None unless each of them reported it."""
    pace = pace_of([row.pace for row in ranks])
    is_whole = bool(ranks) and len(ranks) == ranks[0].world_size
    return pace.tokens_per_s or None if is_whole and pace is not None else None


def _summed(
    unit: UnitOfWork,
    attempt: Attempt,
    gpus: Sequence[tuple[GpuUuid, NodeId, bool]],
    figures: Sequence[Reading],
    assigned_gpu_seconds: float,
    tokens_per_s: float | None,
    *,
    is_read: bool,
) -> AttemptEnergy:
    known = [each for each in figures if isinstance(each, Metered)]
    num_unsupported = sum(each == UNSUPPORTED for each in figures)
    num_steps = select(func.count()).where(TrainingStep.attempt_id == attempt.id)
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
        assigned_gpu_seconds,
        any(is_simulated for _, _, is_simulated in gpus),
        _why(known, len(gpus), num_unsupported, is_read=is_read),
        tokens_per_s / watts if tokens_per_s and watts else None,
        num_unsupported,
        unit.session.scalars(num_steps).one() + attempt.steps_removed,
    )


def _why(known: Sequence[Metered], num_gpus: int, num_unsupported: int, *, is_read: bool) -> str:
    if not is_read:
        return TOO_MUCH
    said = []
    if num_unsupported:
        said.append(f"an energy counter is unsupported on {num_unsupported} of {num_gpus} GPUs")
    if len(known) + num_unsupported < num_gpus:
        num_unread = num_gpus - len(known) - num_unsupported
        said.append(f"{num_unread} of {num_gpus} GPUs have no readings of an energy counter in that time")
    if any(each.is_partial for each in known):
        said.append("a counter was reset meanwhile")
    return "; ".join(said)
