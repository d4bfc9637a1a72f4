"""Thinning of training steps: long after its end an attempt keeps an even selection of its steps, and no more.

A row a step is the job's curve in full, at most ``limits.attempt.steps`` an attempt. Once an attempt has been over for
``retention.steps_days``, ``STEPS_KEPT`` of them draw the same curve.

    steps 1 … 100,000      100,000 rows, in 1,998 buckets of 51 steps
    first and last         stay
    of each bucket         the first step with a pace stays, else its first step

A batch reads the steps in order up to the rows that stay and one batch more, so each full batch deletes a batch of
rows, and what was thinned before is not thinned again: the first and the last step, and so the buckets, stay the same.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import select, text, update

from control.attempts.stragglers import drop_windows
from control.core.unit_of_work import UnitOfWork
from control.policy.policies import active_policy
from muster.db.models import Attempt, TrainingStep
from muster.domain.ids import AttemptId

STEPS_KEPT: Final = 2_000
"""Rows that an attempt keeps: a chart draws fewer."""
_EXTREMES: Final = 2
_THIN: Final = text(
    """
    WITH span AS (
        SELECT min(step) AS first, max(step) AS last, (max(step) - min(step)) / :buckets + 1 AS stride
        FROM training_steps WHERE attempt_id = :attempt_id
    ), oldest AS (
        SELECT ctid AS place, step, pace IS NULL AS is_bare
        FROM training_steps WHERE attempt_id = :attempt_id ORDER BY step LIMIT :read
    ), ranked AS (
        SELECT place, row_number() OVER (PARTITION BY (step - first) / stride ORDER BY is_bare, step) AS number
        FROM oldest, span WHERE step NOT IN (first, last)
    )
    DELETE FROM training_steps WHERE ctid = ANY(ARRAY(SELECT place FROM ranked WHERE number > 1)) RETURNING 1
    """
)


def thin_steps(unit: UnitOfWork, batch: int) -> int:
    """Thin attempts that ended long ago, the oldest first, until about ``batch`` rows are deleted.

    Return how many rows were deleted and attempts were checked: fewer than ``batch`` if nothing is left to do.
    """
    checked: list[AttemptId] = []
    num_done = 0
    for attempt_id in _due(unit, batch):
        num_deleted = _thin(unit, attempt_id, batch) if _has_more(unit, attempt_id) else 0
        num_done += num_deleted
        if num_deleted < batch:
            checked.append(attempt_id)
            num_done += 1
        if num_done >= batch:
            break
    _note(unit, checked)
    return num_done


def _due(unit: UnitOfWork, limit: int) -> Sequence[AttemptId]:
    """Return attempts that ended long ago and were not checked, locked."""
    before = unit.now - timedelta(days=active_policy(unit.session).retention.steps_days)
    query = select(Attempt.id).where(Attempt.steps_thinned_at.is_(None), Attempt.ended_at < before)
    query = query.order_by(Attempt.ended_at).limit(limit)
    return unit.session.scalars(query.with_for_update(skip_locked=True)).all()


def _has_more(unit: UnitOfWork, attempt_id: AttemptId) -> bool:
    """Return whether an attempt has more steps than are kept. It reads so many entries of the index at most."""
    steps = select(TrainingStep.step).where(TrainingStep.attempt_id == attempt_id)
    query = steps.order_by(TrainingStep.step).offset(STEPS_KEPT).limit(1)
    return unit.session.scalar(query) is not None


def _thin(unit: UnitOfWork, attempt_id: AttemptId, batch: int) -> int:
    """Delete at least ``batch`` rows of an attempt that has so many too many, else all that are too many."""
    given = {"attempt_id": attempt_id, "buckets": STEPS_KEPT - _EXTREMES, "read": STEPS_KEPT + batch}
    num_deleted = len(unit.session.execute(_THIN, given).all())
    removed = update(Attempt).where(Attempt.id == attempt_id).values(steps_removed=Attempt.steps_removed + num_deleted)
    unit.session.execute(removed.execution_options(synchronize_session=False))
    return num_deleted


def _note(unit: UnitOfWork, attempt_ids: Sequence[AttemptId]) -> None:
    """Note that none of these attempts has more steps than are kept. The windows of their ranks are dropped too."""
    drop_windows(unit, attempt_ids)
    noted = update(Attempt).where(Attempt.id.in_(attempt_ids)).values(steps_thinned_at=unit.now)
    unit.session.execute(noted.execution_options(synchronize_session=False))
