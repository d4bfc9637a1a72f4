"""The ranks of a job side by side: compute and wait of each, and the newest readings of their GPUs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy import Double, cast, func, select
from sqlalchemy.sql.elements import ColumnElement

from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWork
from control.jobs.read import row_of
from control.telemetry.node_readings import GpuReadings, newest_readings
from muster.db.models import Allocation, AllocationGpu, Attempt, Node, TrainingRank
from muster.db.queries.newest_ranks import newest_with_ranks
from muster.domain.gpu.metrics import value_of
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.job.pace import OWN_PARTS
from muster.domain.spread import Figure
from muster.domain.states import AttemptState
from muster.domain.times import to_ms

MOST_RANKS: Final = 4_096
"""Ranks, or GPUs, that one page compares; of a wider job the first ones."""
MOST_HOSTS: Final = 512
"""Hosts whose newest readings one page reads; of a wider job the first ones."""
_READ: Final[Mapping[str, Figure]] = {
    "utilisation_percent": Figure.UTILISATION,
    "power_w": Figure.POWER,
    "sm_clock_mhz": Figure.CLOCK,
    "temperature_c": Figure.TEMPERATURE,
}


class RankTimes(msgspec.Struct, frozen=True):
    """The newest pace of one rank, in seconds a step. ``own_s``: what it computes and loads; ``wait_s``: its wait.

    They are as ``muster.domain.job.pace.own_s_of`` and ``wait_s_of`` give them. None where a rank reports neither, such
    as a wait within FSDP's passes. ``place``: the same for ranks with equal work, as their program reports it.
    """

    rank: int
    node_id: NodeId
    step_s: float | None
    own_s: float | None
    wait_s: float | None
    collective_s: float | None
    mfu: float | None
    place: str | None


class GpuNow(msgspec.Struct, frozen=True):
    """The newest readings of one GPU of a running attempt. ``number``: its place among all GPUs of the attempt, which
    is the number of its rank if each rank has one GPU (``is_rank``).
    """

    number: int
    is_rank: bool
    node_name: str
    local_index: int
    values: dict[str, float]


def figures_of_ranks(times: Sequence[RankTimes]) -> dict[Figure, dict[int, float | None]]:
    """Return each figure by rank, for ``muster.domain.spread``."""
    found: dict[Figure, dict[int, float | None]] = {
        Figure.MFU: {row.rank: row.mfu for row in times},
        Figure.STEP: {row.rank: row.step_s for row in times},
        Figure.OWN: {row.rank: row.own_s for row in times},
        Figure.WAIT: {row.rank: row.wait_s for row in times},
        Figure.COLLECTIVE: {row.rank: row.collective_s for row in times},
    }
    if found[Figure.WAIT] == found[Figure.COLLECTIVE]:  # the ranks do not measure their wait apart
        del found[Figure.WAIT]
    return found


def figures_of_gpus(gpus: Sequence[GpuNow]) -> dict[Figure, dict[int, float | None]]:
    """Return each figure by the number of the GPU, for ``muster.domain.spread``."""
    return {figure: {gpu.number: gpu.values.get(name) for gpu in gpus} for name, figure in _READ.items()}


def rank_times_of(unit: UnitOfWork, job_id: JobId, *, limit: int = MOST_RANKS) -> Sequence[RankTimes]:
    """Return the pace of ``limit`` ranks of a visible job's newest attempt with reports, in rank order.

    It reads single figures of each row, not its history: a wide job has thousands of ranks.
    """
    job = row_of(unit, job_id)
    parts: ColumnElement[float] = _seconds(OWN_PARTS[0])
    for part in OWN_PARTS[1:]:
        parts = parts + _seconds(part)
    query = (
        select(
            TrainingRank.rank,
            TrainingRank.node_id,
            TrainingRank.step_s,
            func.coalesce(_seconds("own"), parts),
            func.coalesce(_seconds("wait"), _seconds("collective")),
            _seconds("collective"),
            _figure("mfu"),
            TrainingRank.pace["place"].astext,
        )
        .where(TrainingRank.attempt_id == newest_with_ranks(job.id))
        .order_by(TrainingRank.rank)
        .limit(limit)
    )
    return [RankTimes(*row) for row in unit.session.execute(query)]


def _seconds(part: str) -> ColumnElement[float]:
    return _figure(f"{part}_s")


def _figure(name: str) -> ColumnElement[float]:
    return cast(TrainingRank.pace[name].astext, Double)


def gpus_now(unit: UnitOfWork, job_id: JobId) -> Sequence[GpuNow]:
    """Return the newest readings of the GPUs of a visible job's running attempt; empty without one.

    Readings from before the attempt ran are left out: the GPU may have been another tenant's.
    """
    job = row_of(unit, job_id)
    newest = select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number.desc()).limit(1)
    attempt = unit.session.scalar(newest)
    if attempt is None or attempt.running_at is None or attempt.state is AttemptState.ENDED:
        return ()
    shape = job_request(job).shape
    assigned = _assigned(unit, attempt.id)
    known = _known(unit, {node_id for _, node_id, *_ in assigned}, attempt.running_at)
    return [
        GpuNow(node_rank * shape.gpus_per_node + local, shape.has_a_gpu_for_each_rank, name, local, values)
        for uuid, _, name, node_rank, local in assigned
        if uuid in known and (values := _values(known[uuid]))
    ]


def _assigned(unit: UnitOfWork, attempt_id: AttemptId) -> list[tuple[GpuUuid, NodeId, str, int, int]]:
    """Return UUID, host, its name, its rank in the gang and the GPU's place on it, in rank order."""
    columns = (
        AllocationGpu.gpu_uuid,
        AllocationGpu.node_id,
        Node.name,
        AllocationGpu.node_rank,
        AllocationGpu.local_index,
    )
    query = (
        select(*columns)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Node, Node.id == AllocationGpu.node_id)
        .where(Allocation.attempt_id == attempt_id, AllocationGpu.node_rank < MOST_HOSTS)
        .order_by(AllocationGpu.node_rank, AllocationGpu.local_index)
        .limit(MOST_RANKS)
    )
    return [(row[0], row[1], row[2], row[3], row[4]) for row in unit.session.execute(query)]


def _known(unit: UnitOfWork, node_ids: set[NodeId], since: datetime) -> dict[str, GpuReadings]:
    """Return readings from then on, by both clocks: a report may come late, and a host's clock be ahead."""
    known = newest_readings(unit.session.connection(), node_ids, since=since) if node_ids else {}
    return {uuid: each for uuid, each in known.items() if each.reported_in.at_ms >= to_ms(since)}


def _values(readings: GpuReadings) -> dict[str, float]:
    values = {name: value_of(readings.values, name) for name in _READ}
    return {name: value for name, value in values.items() if value is not None}
