"""Retention: jobs, attempts and the audit chain stay; rows that only explain them are deleted by age.

It works in small batches, so that no lock is held for long. A round repeats them until nothing is left, or it has made
``MOST_BATCHES``; the next round continues. So it keeps pace with 200,000 rows of each kind a minute. Events of programs
come more slowly where fewer than 10,000 attempts run (``limits.attempt.events_per_hour``).
"""

from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, delete, not_, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from control.core.batches import in_batches
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.incidents.storage_attribution import is_standing, take_turn
from control.policy.policies import active_policy
from muster.db.models import Event, IdempotencyKey, LogChunk, OutboxMessage, StorageFault
from muster.domain.principals import system_principal

ACTION: Final = declare_action("retention.sweep")
BATCH: Final = 2_000
MOST_BATCHES: Final = 100
_PRINCIPAL: Final = system_principal("retention")


def sweep(units: UnitOfWorkFactory, *, batch: int = BATCH) -> dict[str, int]:
    """Run one round. Return how many rows of each kind were deleted."""
    return in_batches(lambda: sweep_once(units, batch=batch), batch, MOST_BATCHES)


def sweep_once(units: UnitOfWorkFactory, *, batch: int = BATCH) -> dict[str, int]:
    """Delete expired rows, at most ``batch`` of each kind. Return how many of each were deleted."""
    with units.begin(_PRINCIPAL, ACTION, quiet=True) as unit:
        kept = active_policy(unit.session).retention
        before_events = unit.now - timedelta(days=kept.events_days)
        before_messages = unit.now - timedelta(days=kept.outbox_days)
        over = or_(OutboxMessage.sent_at < before_messages, OutboxMessage.dead_at < before_messages)
        hours = active_policy(unit.session).limits.idempotency_hours
        swept = {
            # Only events with a position: an event that no consumer could have read yet is never deleted.
            "events": _drop(unit, Event.id, (Event.at < before_events) & Event.position.is_not(None), batch),
            "outbox": _drop(unit, OutboxMessage.id, over, batch),
            "logs": _drop(
                unit, LogChunk.position, LogChunk.received_at < unit.now - timedelta(days=kept.logs_days), batch
            ),
            "idempotency_keys": _drop_keys(unit, unit.now - timedelta(hours=hours)),
        }
    with units.begin(_PRINCIPAL, ACTION, quiet=True) as unit:  # holds nothing while it waits for its turn
        return {**swept, "storage_faults": _drop_storage_faults(unit, batch)}


def _drop(unit: UnitOfWork, key: InstrumentedAttribute[Any], is_over: ColumnElement[bool], batch: int) -> int:
    doomed = select(key).where(is_over).order_by(key).limit(batch).scalar_subquery()
    statement = delete(key.class_).where(key.in_(doomed)).returning(key).execution_options(synchronize_session=False)
    return len(unit.session.execute(statement).all())


def _drop_keys(unit: UnitOfWork, moment: datetime) -> int:
    statement = delete(IdempotencyKey).where(IdempotencyKey.created_at < moment).returning(IdempotencyKey.key)
    return len(unit.session.execute(statement.execution_options(synchronize_session=False)).all())


def _drop_storage_faults(unit: UnitOfWork, batch: int) -> int:
    """Delete faults that no longer stand: events record the past."""
    take_turn(unit)
    policy = active_policy(unit.session).training.storage
    key = (StorageFault.place, StorageFault.node_id, StorageFault.job_id)
    doomed = select(*key).where(not_(is_standing(unit.now, policy))).order_by(*key).limit(batch)
    statement = delete(StorageFault).where(tuple_(*key).in_(doomed)).returning(StorageFault.place)
    return len(unit.session.execute(statement.execution_options(synchronize_session=False)).all())
