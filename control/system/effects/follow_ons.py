"""Follow-ons of a tried change: what the keepers do because of it, done in the same unit, which is rolled back.

A quarantine only changes a row, and the evacuation's keeper stops the attempt later. The dry run calls the keepers'
own functions, so it states what they will do.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork
from control.fleet.gpu_locks import lock_gpus
from control.health import evacuation
from control.health.judge import policy_version
from control.health.transitions import judge_gpus
from control.hosts.maintenance_evacuation import ask_all_to_leave
from control.policy.policies import active_policy
from health.standing.rest import RestlessRulesError
from muster.db.errors import translation_of
from muster.db.models import Cordon, Gpu
from muster.domain.errors import UnavailableError
from muster.domain.ids import AttemptId, JobId
from muster.domain.states import StopReason

_log: Final = structlog.get_logger(__name__)
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to stop one attempt. ``requested_at``: None for at once."""

    attempt_id: AttemptId
    job_id: JobId
    reason: StopReason
    deadline_at: datetime
    requested_at: datetime | None = None


def follow(unit: UnitOfWork, events: Sequence[Event], leaving: Collection[AttemptId]) -> list[Stop]:
    """Do the follow-ons of a unit with these events, and return all stop requests, its own first.

    ``leaving``: the attempts that had to leave before the change. They are no follow-ons, and are not tried.
    """
    unit.session.flush()
    found = _stops_in(events)
    _judge_at_once(unit)
    for cordon_id in _cordons_in(events):
        evacuate_at = unit.session.scalar(select(Cordon.evacuate_at).where(Cordon.id == cordon_id))
        if evacuate_at is not None:
            num_before = unit.num_events
            ask_all_to_leave(unit, cordon_id)
            found += _stops_in(unit.events_since(num_before), requested_at=evacuate_at)
    unit.session.flush()
    for attempt_id in evacuation.attempts_to_leave(unit.session, unit.now):
        if attempt_id not in leaving:
            found += _evacuated(unit, attempt_id)
    unit.session.flush()
    return found


def _evacuated(unit: UnitOfWork, attempt_id: AttemptId) -> list[Stop]:
    """Return the request to evacuate the attempt. One whose evacuation fails does not stop the others.

    A database that is unavailable or met another unit is raised: the whole unit is refused, or tried again.
    """
    num_before = unit.num_events
    try:
        with unit.session.begin_nested():
            evacuation.evacuate(unit, attempt_id)
    except Exception as fault:
        if isinstance(fault, UnavailableError) or translation_of(fault) is not None:
            raise
        _log.exception("an evacuation failed in a dry run", attempt=attempt_id)
        return []
    return _stops_in(unit.events_since(num_before))


def _judge_at_once(unit: UnitOfWork) -> None:
    """Judge the GPUs that are due because of the unit, such as what a closed breaker held back."""
    due = unit.session.scalars(select(Gpu.uuid).where(Gpu.judge_at == unit.now).order_by(Gpu.uuid)).all()
    if due:
        # For rules that do not come to rest the judge opens an incident: they move nothing.
        with suppress(RestlessRulesError):
            judge_gpus(unit, lock_gpus(unit, due), active_policy(unit.session).health, policy_version(unit))


def _stops_in(events: Sequence[Event], *, requested_at: datetime | None = None) -> list[Stop]:
    return [
        Stop(
            AttemptId(event["subject_id"]),
            JobId(event["payload"]["job_id"]),
            StopReason(event["payload"]["reason"]),
            datetime.fromisoformat(event["payload"]["deadline_at"]),
            requested_at,
        )
        for event in events
        if event.get("kind") == "attempt.stop_requested"
    ]


def _cordons_in(events: Sequence[Event]) -> list[str]:
    return [event["payload"]["cordon_id"] for event in events if event.get("kind") == "node.cordoned"]
