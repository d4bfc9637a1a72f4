"""Slow ranks of an attempt that has ended: their verdicts end with it, and their windows are no longer needed."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Select, null, select, update

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, TrainingRank, VerdictRow
from muster.domain.ids import AttemptId
from muster.domain.job.verdicts import VerdictKind, VerdictState

FEW_RANKS: Final = 2
"""Ranks of a job that has too few peers: each is compared with the attempt before too."""


def open_verdicts(attempt_id: AttemptId) -> Select[VerdictRow]:
    """Return the query of an attempt's verdicts of slow ranks that stand and have not ended."""
    return select(VerdictRow).where(
        VerdictRow.attempt_id == attempt_id,
        VerdictRow.kind == VerdictKind.STRAGGLER,
        VerdictRow.ended_at.is_(None),
        VerdictRow.state == VerdictState.STANDING,
    )


def end_verdict(unit: UnitOfWork, row: VerdictRow) -> None:
    """End a locked verdict: its rank is no longer slow, or no longer judged."""
    row.ended_at = unit.now
    payload = {
        "job_id": row.job_id,
        "verdict_id": row.id,
        "kind": row.kind,
        "cause": row.cause,
        "ranks": row.ranks,
        "step": row.last_step,
    }
    unit.emit("attempt.verdict_ended", "attempt", row.attempt_id, tenant_id=row.tenant_id, payload=payload)


def end_verdicts(unit: UnitOfWork, attempt_id: AttemptId) -> None:
    """End all verdicts of slow ranks of a locked attempt."""
    for row in unit.session.scalars(open_verdicts(attempt_id).order_by(VerdictRow.id).with_for_update()).all():
        end_verdict(unit, row)


def settle_stragglers(unit: UnitOfWork, attempt: Attempt, *, num_ranks: int) -> None:
    """End the verdicts of a locked attempt that has ended, and drop the windows by which it was judged.

    The windows of few ranks stay until its steps are thinned: the next attempt is compared with them.
    """
    end_verdicts(unit, attempt.id)
    if num_ranks > FEW_RANKS:
        drop_windows(unit, [attempt.id])


def drop_windows(unit: UnitOfWork, attempt_ids: Sequence[AttemptId]) -> None:
    """Drop the windows of the ranks of these attempts."""
    judged = update(TrainingRank).where(TrainingRank.attempt_id.in_(attempt_ids), TrainingRank.open_window.is_not(None))
    dropped = judged.values(windows=null(), open_window=null())
    unit.session.execute(dropped.execution_options(synchronize_session=False))
