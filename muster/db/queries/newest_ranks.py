"""A job's newest attempt of which a rank has reported."""

from sqlalchemy import ScalarSelect, select
from sqlalchemy.orm import InstrumentedAttribute

from muster.db.models import Attempt, Job, TrainingRank
from muster.domain.ids import AttemptId, JobId


def newest_with_ranks(job_id: JobId | InstrumentedAttribute[JobId]) -> ScalarSelect[AttemptId]:
    """Return the query for a job's newest attempt of which a rank has reported. ``Job.id``: of the query around it."""
    return (
        select(TrainingRank.attempt_id)
        .join(Attempt, Attempt.id == TrainingRank.attempt_id)
        .where(Attempt.job_id == job_id)
        .order_by(Attempt.fence.desc())
        .limit(1)
        .correlate(Job)
        .scalar_subquery()
    )
