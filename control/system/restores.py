"""A restore of the database from a backup: numbers given out since the backup must not be given out again.

Hosts hold attempts with fences that the backup does not have. So every later fence is above each earlier one, of any
backup (I2). A start that no host had claimed by the backup is given up, for it may have been claimed, have run and have
ended since. Everything else repairs itself: a host that holds an attempt unknown here is ordered to stop it, a host
that lists an attempt no more has lost it, and a job continues from the newest checkpoint on its disk, known here or
not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import select

from control.attempts.attempts import lock_attempt, stop_attempt
from control.core.late_reports import note_late
from control.core.lease_grace import API_SILENCE
from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from control.policy.policies import active_policy
from muster.db.models import Attempt, AttemptHost, Cluster
from muster.db.queries.cluster import raise_epoch
from muster.domain.errors import ConflictError
from muster.domain.ids import AttemptId, JobId
from muster.domain.principals import Permission
from muster.domain.states import AttemptState, HostPartState, StopReason

RESTORED: Final = declare_action("system.restored")
CLOCK_START: Final = datetime(2020, 1, 1, tzinfo=UTC)
CLOCK_STEP: Final = timedelta(minutes=10)
"""An epoch is at least the steps since the start: a second backup, older than the first one's restore, knows nothing of
the epoch that this one gave. Below 2²¹ until 2059, so that a fence is a whole number in JSON for every reader."""
FENCES_A_SECOND: Final = 1 << 22
"""Serials between the beginnings of two seconds of a step. Of two restores in one step the later one is above the
fences of the first, which places no 4 million gangs a second. 600 times as many are below 2³²."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore. ``given_up``: jobs whose start no host had claimed; they wait again, at no cost to them."""

    epoch_before: int
    epoch: int
    given_up: tuple[JobId, ...]


def restored(unit: UnitOfWork, *, reason: str) -> Restored:
    """Record a restore, once after it, before any process of the control plane starts.

    Raises:
        ConflictError: the API was alive a moment ago, so that hosts may receive what the backup states.
    """
    unit.principal.require(Permission.NODE_WRITE)
    given_up = _given_up(unit, reason)
    cluster = unit.session.scalars(select(Cluster).with_for_update()).one()
    if cluster.api_alive_at is not None and unit.now - cluster.api_alive_at <= API_SILENCE:
        ago = (unit.now - cluster.api_alive_at).total_seconds()
        detail = f"the API was alive {max(0.0, ago):.0f} s ago; stop every process of the control plane first"
        raise ConflictError(detail)
    before = cluster.epoch
    steps, rest = divmod(unit.now - CLOCK_START, CLOCK_STEP)
    epoch = raise_epoch(unit.session, at_least=steps, serial=int(rest.total_seconds()) * FENCES_A_SECOND)
    told: dict[str, Any] = {"epoch_before": before, "epoch": epoch, "given_up": list(given_up), "reason": reason}
    if cluster.api_alive_at is not None:  # about when the backup was made: what was stored since is forgotten
        told["lost_since"] = cluster.api_alive_at.isoformat()
        note_late(unit, cluster.api_alive_at)
    unit.emit("system.restored", "system", "cluster", payload=told)
    unit.audit("system.restored", "system", "cluster", reason=reason, detail=told)
    unit.wake(SCHEDULER_CHANNEL)
    return Restored(before, epoch, given_up)


def _given_up(unit: UnitOfWork, reason: str) -> tuple[JobId, ...]:
    """Give up unclaimed starts in the order of their jobs, which every caller uses for locks. Return the jobs."""
    policy = active_policy(unit.session)
    given_up = []
    for attempt_id, job_id in _unclaimed(unit):
        loaded = lock_attempt(unit, attempt_id)
        if loaded.attempt.stop_reason is None:
            stop_attempt(unit, loaded, StopReason.MAINTENANCE, policy, grace=timedelta(0), detail=reason)
            given_up.append(job_id)
    return tuple(given_up)


def _unclaimed(unit: UnitOfWork) -> Sequence[tuple[AttemptId, JobId]]:
    query = (
        select(Attempt.id, Attempt.job_id)
        .join(AttemptHost, AttemptHost.attempt_id == Attempt.id)
        .where(Attempt.state.in_((AttemptState.PLACED, AttemptState.CLAIMING)))
        .where(AttemptHost.state == HostPartState.UNCLAIMED)
        .distinct()
        .order_by(Attempt.job_id)
    )
    return [(row.id, row.job_id) for row in unit.session.execute(query)]
