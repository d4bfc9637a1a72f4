"""Follow-ons of a tried change: what the keepers do because of it, done in the same unit, which is rolled back.

A quarantine only changes a row, and the evacuation's keeper stops the attempt later. The dry run calls the keepers'
own functions, so it states what they will do.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork
from control.fleet.gpu_locks import lock_gpus
from control.health import evacuation
from control.health.judge import policy_version
from control.health.transitions import judge_gpus
from control.hosts.maintenance_evacuation import ask_all_to_leave
from control.policy.policies import active_policy
from health.standing.rest import RestlessRulesError
from muster.db.models import Cordon, Gpu
from muster.domain.ids import AttemptId, JobId
from muster.domain.states import StopReason

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to stop one attempt. ``requested_at``: None for at once. ``is_evacuation``: made by that keeper."""

    attempt_id: AttemptId
    job_id: JobId
    reason: StopReason
    deadline_at: datetime
    requested_at: datetime | None = None
    is_evacuation: bool = False


def follow(unit: UnitOfWork, events: Sequence[Event]) -> list[Stop]:
    """Do the follow-ons of a unit with these events, and return all stop requests, its own first."""
    unit.session.flush()
    found = _stops_in(events)
    _judge_at_once(unit)
    for cordon_id in _cordons_in(events):
        evacuate_at = unit.session.scalar(select(Cordon.evacuate_at).where(Cordon.id == cordon_id))
        if evacuate_at is not None:
            num_before = len(unit.events)
            ask_all_to_leave(unit, cordon_id)
            found += _stops_in(unit.events[num_before:], requested_at=evacuate_at)
    unit.session.flush()
    for attempt_id in evacuation.attempts_to_leave(unit.session, unit.now):
        num_before = len(unit.events)
        evacuation.evacuate(unit, attempt_id)
        found += _stops_in(unit.events[num_before:], is_evacuation=True)
    unit.session.flush()
    return found


def _judge_at_once(unit: UnitOfWork) -> None:
    """Judge the GPUs that are due because of the unit, such as what a closed breaker held back."""
    due = unit.session.scalars(select(Gpu.uuid).where(Gpu.judge_at == unit.now).order_by(Gpu.uuid)).all()
    if due:
        # For rules that do not come to rest the judge opens an incident: they move nothing.
        with suppress(RestlessRulesError):
            judge_gpus(unit, lock_gpus(unit, due), active_policy(unit.session).health, policy_version(unit))


def _stops_in(
    events: Sequence[Event], *, requested_at: datetime | None = None, is_evacuation: bool = False
) -> list[Stop]:
    return [
        Stop(
            AttemptId(event["subject_id"]),
            JobId(event["payload"]["job_id"]),
            StopReason(event["payload"]["reason"]),
            datetime.fromisoformat(event["payload"]["deadline_at"]),
            requested_at,
            is_evacuation,
        )
        for event in events
        if event.get("kind") == "attempt.stop_requested"
    ]


def _cordons_in(events: Sequence[Event]) -> list[str]:
    return [event["payload"]["cordon_id"] for event in events if event.get("kind") == "node.cordoned"]
