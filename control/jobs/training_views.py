"""Queries of a job's training: ranks, steps, checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
from sqlalchemy import BigInteger, ColumnElement, cast, func, select
from sqlalchemy.dialects.postgresql import distinct_on

from control.checkpoints.types import CheckpointRecord
from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time, number_in
from control.core.records import records_of
from control.core.unit_of_work import UnitOfWork
from control.jobs.read import row_of
from muster.db.models import Attempt, Checkpoint, TrainingRank, TrainingStep
from muster.db.queries.newest_ranks import newest_with_ranks
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.states import CheckpointStatus


class TrainingRankRecord(msgspec.Struct, frozen=True):
    """The newest report of one rank. Its columns' meanings are in ``muster.db.models.training``."""

    attempt_id: AttemptId
    rank: int
    node_id: NodeId
    world_size: int | None
    step: int | None
    loss: float | None
    step_s: float | None
    outcome: str | None
    updated_at: datetime
    history: dict[str, Any] | None
    pace: dict[str, Any] | None
    warnings: dict[str, Any] | None


class TrainingStepRecord(msgspec.Struct, frozen=True):
    """One step of one attempt as rank 0 reported it. ``pace``: of the steps since the one that it reported before."""

    attempt_id: AttemptId
    step: int
    loss: float | None
    step_s: float | None
    at: datetime
    pace: dict[str, Any] | None


def checkpoints_of(unit: UnitOfWork, job_id: JobId, *, newest: int | None = None) -> Sequence[CheckpointRecord]:
    """Return every generation of a visible job, the newest step first.

    ``newest``: return only so many: the one being written, then the newest commits.
    """
    job = row_of(unit, job_id)
    by_step = (Checkpoint.step.desc(), Checkpoint.fence.desc())
    order = by_step if newest is None else (Checkpoint.committed_at.desc(),)
    query = select(Checkpoint).where(Checkpoint.job_id == job.id).order_by(*order).limit(newest)
    return records_of(unit.session.scalars(query), CheckpointRecord)


_LEAST_STEPS: Final = 20
"""With fewer a spread of step times states nothing."""
LEAST_STEP_S, MOST_STEP_S = 1e-6, 1e7
"""Other steps are no times that classes could divide: a program may report any number."""
CHECKPOINT_SORTS: Final = by_time(
    SortKey(Checkpoint.step, attrgetter("step"), number_in),
    SortKey(Checkpoint.fence, attrgetter("fence"), number_in),
    SortKey(Checkpoint.id, attrgetter("id")),
)


@dataclass(frozen=True, slots=True)
class CheckpointFilter:
    """Conditions on a checkpoint; None and empty set no condition. ``span``: in which it was begun."""

    statuses: Sequence[CheckpointStatus] = ()
    is_pinned: bool | None = None
    span: Span = ALWAYS


def list_checkpoints(
    unit: UnitOfWork, job_id: JobId, wanted: CheckpointFilter, part: Part
) -> Sequence[CheckpointRecord]:
    """Return generations of a visible job, the newest step first unless ``part`` says otherwise."""
    query = select(Checkpoint).where(
        Checkpoint.job_id == row_of(unit, job_id).id, *wanted.span.conditions(Checkpoint.created_at)
    )
    if wanted.statuses:
        query = query.where(Checkpoint.status.in_(wanted.statuses))
    if wanted.is_pinned is not None:
        query = query.where(Checkpoint.pinned_at.is_not(None) if wanted.is_pinned else Checkpoint.pinned_at.is_(None))
    return records_of(unit.session.scalars(part.of(query, CHECKPOINT_SORTS[TimeOrder.NEWEST])), CheckpointRecord)


def ranks_of(unit: UnitOfWork, job_id: JobId, *, limit: int | None = None) -> Sequence[TrainingRankRecord]:
    """Return the newest report of each rank, or of ``limit`` ranks, of a visible job's newest attempt with reports."""
    newest = newest_with_ranks(row_of(unit, job_id).id)
    query = select(TrainingRank).where(TrainingRank.attempt_id == newest).order_by(TrainingRank.rank).limit(limit)
    return records_of(unit.session.scalars(query), TrainingRankRecord)


def steps_of(unit: UnitOfWork, job_id: JobId, *, after: int = -1, limit: int = 1_000) -> Sequence[TrainingStepRecord]:
    """Return steps of a visible job after step ``after``.

    A step that was trained again after a resume is as trained last.
    """
    job = row_of(unit, job_id)
    query = (
        select(TrainingStep)
        .join(Attempt, Attempt.id == TrainingStep.attempt_id)
        .where(TrainingStep.job_id == job.id, TrainingStep.step > after)
        .ext(distinct_on(TrainingStep.step))
        .order_by(TrainingStep.step, Attempt.fence.desc())
        .limit(limit)
    )
    return records_of(unit.session.scalars(query), TrainingStepRecord)


@dataclass(frozen=True, slots=True)
class Curve:
    """Steps of one attempt as rank 0 reported them, thinned evenly to the requested number; the last is kept."""

    number: int
    steps: Sequence[TrainingStepRecord]


def curves_of(unit: UnitOfWork, job_id: JobId, *, points: int, attempts: int) -> Sequence[Curve]:
    """Return the curves of a visible job's newest attempts, the oldest first, with about ``points`` steps among them.

    Each point is one look-up in an index, for any number of trained steps.
    """
    job = row_of(unit, job_id)
    newest = select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number.desc()).limit(attempts)
    rows = list(reversed(unit.session.scalars(newest).all()))
    curves = []
    for row in rows:
        steps = _thinned(unit, row.id, points=points // len(rows))
        if steps:
            curves.append(Curve(row.number, steps))
    return curves


def paces_of(unit: UnitOfWork, job_id: JobId, *, points: int) -> Sequence[TrainingStepRecord]:
    """Return about ``points`` steps with a pace, of a visible job's newest attempt with steps, the oldest first."""
    attempt_id = _newest_with_steps(unit, row_of(unit, job_id).id)
    return () if attempt_id is None else _thinned(unit, attempt_id, TrainingStep.pace.is_not(None), points=points)


def _newest_with_steps(unit: UnitOfWork, job_id: JobId) -> AttemptId | None:
    has_steps = select(TrainingStep.step).where(TrainingStep.attempt_id == Attempt.id).exists()
    query = select(Attempt.id).where(Attempt.job_id == job_id, has_steps).order_by(Attempt.number.desc()).limit(1)
    return unit.session.scalar(query)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How the times of an attempt's newest steps are spread, as rank 0 reported them.

    ``num_steps``: so many. ``bars``: the lower end of each class in seconds, and its number of steps; the classes have
    equal widths, and the last has all that are longer.
    """

    num_steps: int
    p50_s: float
    p95_s: float
    p99_s: float
    bars: Sequence[tuple[float, int]]


def step_times_of(unit: UnitOfWork, job_id: JobId, *, newest: int = 5_000, classes: int = 24) -> StepTimes | None:
    """Return the spread of the ``newest`` steps of a visible job's newest attempt with steps; None: it has too few.

    The first step of an attempt is left out: it includes compiling and the first batch.
    """
    attempt_id = _newest_with_steps(unit, row_of(unit, job_id).id)
    own = (TrainingStep.attempt_id == attempt_id, TrainingStep.step_s.between(LEAST_STEP_S, MOST_STEP_S))
    first = select(func.min(TrainingStep.step)).where(TrainingStep.attempt_id == attempt_id).scalar_subquery()
    query = select(TrainingStep.step_s).where(*own, TrainingStep.step > first).order_by(TrainingStep.step.desc())
    seconds = np.array(unit.session.scalars(query.limit(newest)).all(), dtype=float)
    if len(seconds) < _LEAST_STEPS:
        return None
    p50_s, p95_s, p99_s = (float(value) for value in np.percentile(seconds, (50, 95, 99)))
    low, high = float(seconds.min()), max(p99_s, float(seconds.min()) * 1.001)
    counts, edges = np.histogram(np.minimum(seconds, high), bins=classes, range=(low, high))
    bars = list(zip(edges[:-1].tolist(), counts.tolist(), strict=True))
    return StepTimes(len(seconds), p50_s, p95_s, p99_s, bars)


def steps_since(
    unit: UnitOfWork, attempt_id: AttemptId, since: datetime, *, points: int, with_pace: bool = False
) -> Sequence[TrainingStepRecord]:
    """Return about ``points`` steps of an attempt that were reported at or after ``since``, the oldest first.

    ``with_pace``: only steps with a pace.

    No index has the time. A coarse curve of the whole attempt gives the step from which on the rest is read.
    """
    wanted = (TrainingStep.pace.is_not(None),) if with_pace else ()
    coarse = _thinned(unit, attempt_id, *wanted, points=points)
    before = [row.step for row in coarse if row.at < since]
    fine = _thinned(unit, attempt_id, *wanted, TrainingStep.step >= before[-1], points=points) if before else coarse
    return [row for row in fine if row.at >= since]


def _thinned(
    unit: UnitOfWork, attempt_id: AttemptId, *conditions: ColumnElement[bool], points: int
) -> Sequence[TrainingStepRecord]:
    """Return the steps of an attempt for which ``conditions`` hold, evenly over its length, and the last of them."""
    wanted = (TrainingStep.attempt_id == attempt_id, *conditions)
    first, last = unit.session.execute(
        select(func.min(TrainingStep.step), func.max(TrainingStep.step)).where(*wanted)
    ).one()
    if first is None:
        return ()
    stride = max(-(-(last - first + 1) // max(points, 1)), 1)
    series = func.generate_series(*(cast(each, BigInteger) for each in (first, last, stride)))
    bucket = series.table_valued("step").render_derived(name="bucket")
    nearest = (
        select(TrainingStep.step)
        .where(*wanted, TrainingStep.step >= bucket.c.step, TrainingStep.step < bucket.c.step + stride)
        .order_by(TrainingStep.step)
        .limit(1)
        .correlate_except(TrainingStep)
        .scalar_subquery()
    )
    found = unit.session.scalars(select(nearest).select_from(bucket))
    chosen = {step for step in found if step is not None}
    query = select(TrainingStep).where(TrainingStep.attempt_id == attempt_id, TrainingStep.step.in_(chosen | {last}))
    return records_of(unit.session.scalars(query.order_by(TrainingStep.step)), TrainingStepRecord)
