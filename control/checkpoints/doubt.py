"""Generations of one attempt from the step on at which a GPU began to compute wrong, as the job's program reports.

A report of a program concerns its own job alone, so it taints no other job's generations::

    attempt 1:   step 8     step 10     step 12              first step that is not to be trusted: 10
                 trusted    doubted     doubted              while other GPUs run the same steps again
                            TAINTED     TAINTED              if they show that a GPU was wrong

Commits that were not reported yet have no row. The time after the newest trusted commit stands for them.
"""

from datetime import timedelta
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.checkpoints.checkpoints import RESUMABLE, move_checkpoint
from control.checkpoints.taint_lineage import taint_lineage
from control.checkpoints.types import Doubt
from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, Checkpoint
from muster.domain.ids import JobId
from muster.domain.states import CheckpointStatus

_TEXT: Final = "a GPU computed wrong from step {step} on, as other GPUs have shown"


def doubt_about(session: Session, attempt: Attempt, first_step: int) -> Doubt:
    """Return the doubt about an attempt whose results are not to be trusted from ``first_step`` on."""
    trusted = select(func.max(Checkpoint.committed_at)).where(
        Checkpoint.attempt_id == attempt.id, Checkpoint.step < first_step
    )
    newest = session.scalar(trusted)
    since = attempt.placed_at if newest is None else newest + timedelta(milliseconds=1)
    return Doubt(int(attempt.fence), first_step, since)


def taint_from_step(unit: UnitOfWork, attempt: Attempt, first_step: int) -> int:
    """Taint what an attempt that has ended committed from ``first_step`` on, and all that continued from it.

    Return how many rows.
    """
    doubt = doubt_about(unit.session, attempt, first_step)
    if attempt.tainted_since is None or attempt.tainted_since > doubt.since:
        attempt.tainted_since = doubt.since
    query = (
        select(Checkpoint)
        .where(Checkpoint.attempt_id == attempt.id, Checkpoint.status.in_(RESUMABLE), Checkpoint.step >= first_step)
        .order_by(Checkpoint.id)
        .with_for_update(key_share=True)
    )
    rows = unit.session.scalars(query).all()
    for row in rows:
        row.reason = _TEXT.format(step=first_step)
        move_checkpoint(unit, row, CheckpointStatus.TAINTED)
    unit.session.flush()
    return len(rows) + taint_lineage(unit, [JobId(attempt.job_id)])
