"""Jobs that had to leave a GPU or a node: their good GPUs are theirs again once proved clean, which takes a moment."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from muster.db.models import Allocation, AllocationGpu, Attempt
from muster.domain.ids import JobId
from muster.domain.states import AllocationState, Cause

_HAD_TO_LEAVE: Final = (Cause.EVACUATED, Cause.MAINTENANCE)
PATIENCE: Final = timedelta(seconds=10)
"""A host that proves nothing clean in that time keeps no job waiting: it takes others."""


def waiting_for_their_own(session: Session, job_ids: Sequence[JobId], now: datetime) -> frozenset[JobId]:
    """Which of these had to leave just now, and have GPUs that are still being proved clean."""
    cleaning = exists().where(
        AllocationGpu.allocation_id == Allocation.id, AllocationGpu.state != AllocationState.RELEASED
    )
    query = (
        select(Attempt.job_id)
        .join(Allocation, Allocation.attempt_id == Attempt.id)
        .where(
            Attempt.job_id.in_(job_ids), Attempt.cause.in_(_HAD_TO_LEAVE), Attempt.ended_at > now - PATIENCE, cleaning
        )
    )
    return frozenset(session.scalars(query))
