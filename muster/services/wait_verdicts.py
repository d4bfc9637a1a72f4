"""Why a job waits, as it is kept in its row beside the sentence: the token that binds, and all with their counts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import or_, select

from muster.db.models import Job
from muster.domain.states import JobState
from muster.domain.wait_reasons import WaitReason
from muster.services.unit_of_work import UnitOfWork
from scheduler.model import Reason, Verdict, Waiting

WITHOUT_A_LOOK: Final[Mapping[JobState, WaitReason]] = {
    JobState.HELD: WaitReason.PERSON,
    JobState.RECOVERING: WaitReason.RECOVERING,
}
"""What keeps a job from the scheduler is told by its state."""


def note_waiting(unit: UnitOfWork, waiting: Sequence[Waiting]) -> int:
    """Keep why each job waits, where that has changed. Returns how many changed."""
    changed = 0
    for one in waiting:
        kept = _kept(one.verdict)
        has_changed = or_(Job.state_reason != one.why, Job.wait_verdict.is_distinct_from(kept))
        query = select(Job).where(Job.id == one.job_id, Job.state == JobState.QUEUED, has_changed)
        job = unit.session.scalar(query)
        if job is not None:
            job.state_reason, job.wait_verdict, job.updated_at = one.why, kept, unit.now
            changed += 1
    return changed


def binding_of(state: JobState, kept: Mapping[str, Any] | None) -> WaitReason | None:
    """None: it does not wait, or the scheduler has not looked at it yet."""
    if state in WITHOUT_A_LOOK:
        return WITHOUT_A_LOOK[state]
    return WaitReason(kept["binding"]) if kept is not None and state is JobState.QUEUED else None


def reasons_of(state: JobState, kept: Mapping[str, Any] | None) -> tuple[Reason, ...]:
    if state in WITHOUT_A_LOOK:
        return (Reason(WITHOUT_A_LOOK[state]),)
    return tuple(_reasons(kept)) if kept is not None and state is JobState.QUEUED else ()


def _reasons(kept: Mapping[str, Any]) -> Iterator[Reason]:
    for token, num_gpus, num_hosts in kept["reasons"]:
        yield Reason(WaitReason(token), num_gpus, num_hosts)


def _kept(verdict: Verdict) -> dict[str, Any]:
    """A verdict that counts nothing has its token alone."""
    told = verdict.reasons or (Reason(verdict.binding),)
    reasons = [[reason.token.value, reason.num_gpus, reason.num_hosts] for reason in told]
    return {"binding": verdict.binding.value, "reasons": reasons}
