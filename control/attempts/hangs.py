"""Hangs by verdict: what an attempt that was stopped for one leaves to its job."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.checkpoints import checkpoints
from muster.db.models import Attempt, AttemptHost, Job, VerdictRow
from muster.domain.job.verdicts import BLAMES_PROGRAM, VerdictKind, VerdictReaction, VerdictState
from muster.domain.states import Cause, StopReason


def hang_that_ended(session: Session, attempt: Attempt, cause: Cause) -> VerdictRow | None:
    """Return the verdict by which an attempt was stopped for a hang; None for any other end."""
    if cause is not Cause.HANG or attempt.stop_reason is not StopReason.HANG:
        return None
    query = select(VerdictRow).where(
        VerdictRow.attempt_id == attempt.id,
        VerdictRow.kind == VerdictKind.HANG,
        VerdictRow.reaction.in_((VerdictReaction.RESTART, VerdictReaction.HOLD)),
    )
    return session.scalar(query.order_by(VerdictRow.id.desc()).limit(1))


def why_on_hold(hang: VerdictRow) -> str | None:
    """Return why the job is held after this hang; None if it is tried again."""
    if hang.reaction is not VerdictReaction.HOLD:
        return None
    return f"{Cause.HANG}: {hang.sentence}; held, as its rule for hangs says: release it to try again"


def blame_host(hang: VerdictRow, hosts: Sequence[AttemptHost]) -> None:
    """Mark the host that caused the hang, so that the next attempt avoids it, unless the program is to blame."""
    if hang.state is VerdictState.STANDING and hang.cause not in BLAMES_PROGRAM:
        for host in hosts:
            host.is_at_fault |= host.node_id == hang.node_id


def num_hangs_in_a_row(session: Session, job: Job, *, most: int) -> int:
    """Return how many of the job's newest ended attempts hung, without another end or progress between them.

    ``most``: the number at which counting ends.
    """
    query = select(Attempt).where(Attempt.job_id == job.id, Attempt.cause.is_not(None))
    num_hangs = 0
    for attempt in session.scalars(query.order_by(Attempt.number.desc()).limit(most)):
        if attempt.cause is not Cause.HANG:
            break
        num_hangs += 1
        if checkpoints.has_progressed(session, attempt):
            break
    return num_hangs
