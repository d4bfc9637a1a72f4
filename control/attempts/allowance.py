"""Limits on what one attempt's program may store: events, checkpoints and steps by its reports, bytes of its output.

A program prints and reports what it likes, so the server bounds it. What is beyond a limit is counted and left out, and
one event of the attempt states that. No report is refused: hosts would send it again.

    events        ``limits.attempt.events``, and ``events_per_hour`` more for each hour since the placement
    checkpoints   ``limits.attempt.checkpoints`` rows; the oldest that were removed from the store are deleted
    steps         ``limits.attempt.steps`` rows; each rank's own thinned history continues
    output        ``limits.attempt.log_bytes`` (``control.hosts.log_intake``)

An edge of a checkpoint's states always leaves its event (I18): a new row is charged with all that it may leave.
"""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, func, select

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, AttemptUsage, Checkpoint
from muster.domain.ids import AttemptId, JobId, TenantId
from muster.domain.policy.limits import AttemptLimitPolicy
from muster.domain.states import CheckpointStatus

EVENTS: Final = "events"
CHECKPOINTS: Final = "checkpoints"
STEPS: Final = "steps"
LOG_BYTES: Final = "log_bytes"
REPORTS_DROPPED: Final = "attempt.reports_dropped"
EVENTS_OF_A_CHECKPOINT: Final = 6
"""Begun, committed, verified, good, expired, and a failure or taint."""
KEPT_EXPIRED: Final = 256
"""Removed checkpoints that stay: a resume names the newest, since a death may have left their removal half done."""
_HOUR_S: Final = 3_600.0


def is_over(ended_at: datetime | None, now: datetime, limits: AttemptLimitPolicy) -> bool:
    """Return whether an attempt ended so long ago that nothing more is stored for it."""
    return ended_at is not None and now - ended_at > timedelta(seconds=limits.late_reports_s)


def note_dropped(
    unit: UnitOfWork, attempt_id: AttemptId, job_id: JobId, tenant_id: TenantId, *, what: str, reason: str
) -> None:
    """Add the one event that states that reports of an attempt are left out from now on."""
    payload = {"job_id": job_id, "what": what, "reason": reason}
    unit.emit(REPORTS_DROPPED, "attempt", attempt_id, tenant_id=tenant_id, payload=payload)


class Allowance:
    """What the locked attempt may still store by its program's reports. Most batches ask nothing, and read nothing."""

    def __init__(self, unit: UnitOfWork, attempt: Attempt, limits: AttemptLimitPolicy) -> None:
        self._unit = unit
        self._attempt = attempt
        self._limits = limits
        self._usage: dict[str, AttemptUsage] = {}

    def takes_event(self, num_events: int = 1) -> bool:
        """Charge events and return True, or count them as left out."""
        usage = self._of(EVENTS)
        hours = max(0.0, (self._unit.now - self._attempt.placed_at).total_seconds() / _HOUR_S)
        if usage.amount < self._limits.events + self._limits.events_per_hour * hours:
            usage.amount += num_events
            return True
        limit = f"{self._limits.events:,} and {self._limits.events_per_hour:,} an hour"
        self._drop(usage, f"its program has reported as many events as one attempt may ({limit}, limits.attempt)")
        return False

    def takes_checkpoint(self, maker: Attempt) -> bool:
        """Return whether one more row of ``maker`` is stored. The oldest removed checkpoints are deleted for it."""
        of_maker = Checkpoint.attempt_id == maker.id
        found = self._unit.session.scalar(select(func.count()).select_from(Checkpoint).where(of_maker)) or 0
        if found >= self._limits.checkpoints and not self._make_room(maker, found + 1 - self._limits.checkpoints):
            reason = f"the attempt has {found:,} checkpoints that were not removed (limits.attempt.checkpoints)"
            self._drop(self._of(CHECKPOINTS), reason)
            return False
        return self.takes_event(EVENTS_OF_A_CHECKPOINT)

    def takes_steps(self, num_stored: int, num_new: int) -> bool:
        """Return whether so many more steps are stored, after ``num_stored``."""
        if num_stored + num_new <= self._limits.steps:
            return True
        self._drop(self._of(STEPS), f"it has {num_stored:,} steps (limits.attempt.steps)", num_new)
        return False

    def _drop(self, usage: AttemptUsage, reason: str, num_dropped: int = 1) -> None:
        if usage.num_dropped == 0:
            attempt = self._attempt
            words = f"{reason}: further ones are counted and left out"
            note_dropped(self._unit, attempt.id, attempt.job_id, attempt.tenant_id, what=usage.kind, reason=words)
        usage.num_dropped += num_dropped

    def _make_room(self, maker: Attempt, num_rows: int) -> bool:
        """Delete the oldest rows of removed checkpoints, and return whether there were enough."""
        expired = (Checkpoint.attempt_id == maker.id) & (Checkpoint.status == CheckpointStatus.EXPIRED)
        newest = select(Checkpoint.id).where(expired).order_by(Checkpoint.step.desc()).offset(KEPT_EXPIRED)
        spare = max(num_rows, self._limits.checkpoints // 100)
        doomed = self._unit.session.scalars(newest).all()[-spare:]
        if len(doomed) < num_rows:
            return False
        self._unit.session.execute(delete(Checkpoint).where(Checkpoint.id.in_(doomed)))
        return True

    def _of(self, kind: str) -> AttemptUsage:
        usage = self._usage.get(kind)
        if usage is None:
            usage = self._unit.session.get(AttemptUsage, (self._attempt.id, kind, ""))
            usage = usage or AttemptUsage(attempt_id=self._attempt.id, kind=kind)
            self._unit.session.add(usage)
            self._usage[kind] = usage
        return usage
