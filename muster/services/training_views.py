"""Reading what is known of a job's training: ranks, steps, checkpoints."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on

from muster.db.models import Attempt, Checkpoint, TrainingRank, TrainingStep
from muster.domain.ids import JobId
from muster.services import jobs
from muster.services.unit_of_work import UnitOfWork


def checkpoints_of(unit: UnitOfWork, job_id: JobId) -> Sequence[Checkpoint]:
    """Every generation of a visible job, the newest step first."""
    job = jobs.get(unit, job_id)
    query = select(Checkpoint).where(Checkpoint.job_id == job.id)
    return unit.session.scalars(query.order_by(Checkpoint.step.desc(), Checkpoint.fence.desc())).all()


def ranks_of(unit: UnitOfWork, job_id: JobId) -> Sequence[TrainingRank]:
    """The newest word of each rank of a visible job's newest attempt that spoke."""
    job = jobs.get(unit, job_id)
    newest = (
        select(TrainingRank.attempt_id)
        .join(Attempt, Attempt.id == TrainingRank.attempt_id)
        .where(Attempt.job_id == job.id)
        .order_by(Attempt.fence.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = select(TrainingRank).where(TrainingRank.attempt_id == newest).order_by(TrainingRank.rank)
    return unit.session.scalars(query).all()


def steps_of(unit: UnitOfWork, job_id: JobId, *, after: int = -1, limit: int = 1_000) -> Sequence[TrainingStep]:
    """Steps of a visible job behind step ``after``; one that was trained again after a resume is as trained last."""
    job = jobs.get(unit, job_id)
    query = (
        select(TrainingStep)
        .join(Attempt, Attempt.id == TrainingStep.attempt_id)
        .where(TrainingStep.job_id == job.id, TrainingStep.step > after)
        .ext(distinct_on(TrainingStep.step))
        .order_by(TrainingStep.step, Attempt.fence.desc())
        .limit(limit)
    )
    return unit.session.scalars(query).all()
