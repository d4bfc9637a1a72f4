"""Jobs that had to leave a GPU or a node: their good GPUs return to them once proved clean, which takes a moment.

No other job takes these GPUs meanwhile (``control.attempts.resume_holds``).
"""

import functools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Select, bindparam, exists, or_, select
from sqlalchemy.orm import Session

from control.placement.elastic import IS_ELASTIC
from muster.db.models import Allocation, AllocationGpu, Attempt, Job, Node
from muster.db.pipeline.packed_arrays import within_parameter
from muster.db.queries.assignments import IS_ASSIGNED
from muster.domain.exit.causes import HAD_TO_LEAVE
from muster.domain.ids import JobId
from muster.domain.states import Contact

PATIENCE: Final = timedelta(seconds=10)
"""Time a job waits for a host to prove its GPUs clean; after that the job takes other hosts."""


def waiting_for_their_own(session: Session, job_ids: Sequence[JobId], now: datetime) -> frozenset[JobId]:
    """Return the jobs among these that had to leave just now and have GPUs that are still being proved clean.

    An elastic job counts whatever its end was, or it would continue smaller than it must. No silent host is waited for.
    """
    parameters = {"job_ids": list(job_ids), "since": now - PATIENCE}
    return frozenset(session.scalars(_ended_just_now_and_unproved(), parameters))


@functools.cache
def _ended_just_now_and_unproved() -> Select[JobId]:
    """Return the query, built once: each planning of the queue asks it."""
    cleaning = exists().where(
        AllocationGpu.allocation_id == Allocation.id,
        IS_ASSIGNED,
        Node.id == AllocationGpu.node_id,
        Node.contact == Contact.LIVE,
    )
    return (
        select(Attempt.job_id)
        .join(Allocation, Allocation.attempt_id == Attempt.id)
        .join(Job, Job.id == Attempt.job_id)
        .where(
            within_parameter(Attempt.job_id, "job_ids"),
            or_(Attempt.cause.in_(HAD_TO_LEAVE), IS_ELASTIC),
            Attempt.ended_at > bindparam("since"),
            cleaning,
        )
    )
