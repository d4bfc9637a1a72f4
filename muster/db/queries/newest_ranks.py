"""A job's newest attempt of which a rank has reported."""

from sqlalchemy import ScalarSelect, select

from muster.db.models import Attempt, TrainingRank
from muster.domain.ids import AttemptId, JobId


def newest_with_ranks(job_id: JobId) -> ScalarSelect[AttemptId]:
    """Return the query for a job's newest attempt of which a rank has reported."""
    return (
        select(TrainingRank.attempt_id)
        .join(Attempt, Attempt.id == TrainingRank.attempt_id)
        .where(Attempt.job_id == job_id)
        .order_by(Attempt.fence.desc())
        .limit(1)
        .scalar_subquery()
    )
