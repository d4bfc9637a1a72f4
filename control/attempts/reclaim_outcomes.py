"""Outcome of a reclaim's victim: whether it left in time, whether its work was saved, and its loss.

All under its job's lock.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import select

from control.checkpoints.checkpoints import RESUMABLE
from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, AttemptHost, Checkpoint, Reclaim, TrainingRank
from muster.domain.states import RECLAIM_EDGES, Cause, ReclaimOutcome, ReclaimState, require_edge

_SIGKILL: Final = 9
_SAVED: Final = "stopped_with_checkpoint"


def settle(unit: UnitOfWork, attempt: Attempt, hosts: Sequence[AttemptHost]) -> None:
    """Settle the notice of the locked attempt, which has ENDED, if it had one."""
    reclaim = unit.session.scalar(
        select(Reclaim).where(Reclaim.victim_attempt_id == attempt.id, Reclaim.state == ReclaimState.NOTIFIED)
    )
    if reclaim is None:
        return
    why = f"{attempt.cause}: {attempt.proof}"
    if attempt.cause is not Cause.RECLAIMED:
        move(unit, reclaim, ReclaimState.OVERTAKEN, why)
        return
    last = _last_checkpoint(unit, attempt)
    reclaim.outcome, reclaim.lost_gpu_s = _compute(unit, reclaim, attempt, last)
    state = ReclaimState.FORCED if any(_was_killed(host) for host in hosts) else ReclaimState.RELEASED
    move(unit, reclaim, state, why, **_work(reclaim, last))


def accept_late_report(unit: UnitOfWork, attempt: Attempt) -> None:
    """Update the outcome of a victim whose ranks' last reports arrive after its end was settled."""
    if attempt.cause is not Cause.RECLAIMED:
        return
    reclaim = unit.session.scalar(
        select(Reclaim).where(
            Reclaim.victim_attempt_id == attempt.id,
            Reclaim.state.in_([ReclaimState.RELEASED, ReclaimState.FORCED]),
            Reclaim.outcome == ReclaimOutcome.WORK_LOST,
        )
    )
    if reclaim is None:
        return
    last = _last_checkpoint(unit, attempt)
    outcome, lost_gpu_s = _compute(unit, reclaim, attempt, last)
    if outcome is ReclaimOutcome.CHECKPOINTED:
        reclaim.outcome, reclaim.lost_gpu_s = outcome, lost_gpu_s
        record_event(unit, reclaim, "reclaim.outcome_known", **_work(reclaim, last))


def move(unit: UnitOfWork, reclaim: Reclaim, state: ReclaimState, why: str, **more: Any) -> None:
    """Move a reclaim along an edge of its states, with the event for the victim's tenant."""
    require_edge(RECLAIM_EDGES, reclaim.state, state)
    origin, reclaim.state = reclaim.state, state
    reclaim.settled_at, reclaim.settled_why = unit.now, why
    payload = {"from": origin, "to": state, "reason": reclaim.settled_why, **more}
    record_event(unit, reclaim, f"reclaim.{state.lower()}", **payload)


def record_event(unit: UnitOfWork, reclaim: Reclaim, kind: str, **payload: Any) -> None:
    """Emit an event in the timeline of the victim's job."""
    job_id = reclaim.victim_job_id
    whose = {"reclaim_id": reclaim.id, "job_id": job_id, "attempt_id": reclaim.victim_attempt_id}
    unit.emit(kind, "job", job_id, tenant_id=reclaim.victim_tenant_id, payload={**whose, **payload})


def _last_checkpoint(unit: UnitOfWork, attempt: Attempt) -> Checkpoint | None:
    query = select(Checkpoint).where(Checkpoint.job_id == attempt.job_id, Checkpoint.status.in_(RESUMABLE))
    return unit.session.scalars(query.order_by(Checkpoint.step.desc(), Checkpoint.fence.desc()).limit(1)).first()


def _compute(
    unit: UnitOfWork, reclaim: Reclaim, attempt: Attempt, last: Checkpoint | None
) -> tuple[ReclaimOutcome, float]:
    """Return the outcome, and the GPU-seconds from the newest usable checkpoint to the end."""
    ended_at = attempt.ended_at or unit.now
    moments = [attempt.running_at or ended_at]
    if last is not None and last.committed_at is not None:
        moments.append(last.committed_at)
    num_gpus = reclaim.num_gpus + len(reclaim.keeps or ())  # all of them start again, the kept ones as well
    lost_gpu_s = num_gpus * max(0.0, (ended_at - max(moments)).total_seconds())
    has_saved = max(moments[1:], default=attempt.placed_at) >= reclaim.notified_at
    said = select(TrainingRank.outcome).where(TrainingRank.attempt_id == attempt.id, TrainingRank.rank == 0)
    is_checkpointed = has_saved or (last is not None and unit.session.scalar(said) == _SAVED)
    return ReclaimOutcome.CHECKPOINTED if is_checkpointed else ReclaimOutcome.WORK_LOST, lost_gpu_s


def _work(reclaim: Reclaim, last: Checkpoint | None) -> dict[str, Any]:
    """Return the timeline's entry: the step to resume from, and a text where no save fit into the notice."""
    step = None if last is None else last.step
    told: dict[str, Any] = {
        "outcome": reclaim.outcome,
        "lost_gpu_s": round(reclaim.lost_gpu_s or 0.0, 1),
        "resumes_from_step": step,
    }
    if reclaim.outcome is ReclaimOutcome.WORK_LOST:
        onward = "it starts again" if step is None else f"it continues from the checkpoint of step {step}"
        told["words"] = f"no checkpoint was saved within the notice of {reclaim.notice_s:g} s: {onward}"
    return told


def _was_killed(host: AttemptHost) -> bool:
    record = host.exit_record or {}
    ranks = record.get("ranks")
    found = ranks.values() if isinstance(ranks, dict) else ()
    return record.get("launcher_signal") == _SIGKILL or any(
        isinstance(rank, dict) and rank.get("signal") == _SIGKILL for rank in found
    )
