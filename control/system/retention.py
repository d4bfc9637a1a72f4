"""Retention: jobs, attempts and the audit chain stay; rows that only explain them are deleted by age.

It works in small batches of one kind, each a transaction, so that no lock is held for long. A round repeats them until
nothing is left, or it has made ``MOST_BATCHES``; the next round continues. So it keeps pace with 200,000 rows of each
kind a minute. Events of programs come more slowly where fewer than 10,000 attempts run
(``limits.attempt.events_per_hour``).
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    SQLColumnExpression,
    any_,
    delete,
    func,
    literal_column,
    not_,
    select,
    tuple_,
)

from control.core.batches import in_batches
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.incidents.storage_attribution import is_standing, take_turn
from control.policy.policies import active_policy
from muster.db.models import Base, Event, IdempotencyKey, LogChunk, OutboxMessage, StorageFault
from muster.domain.principals import system_principal

ACTION: Final = declare_action("retention.sweep")
BATCH: Final = 2_000
MOST_BATCHES: Final = 100
_PRINCIPAL: Final = system_principal("retention")


def sweep(units: UnitOfWorkFactory, *, batch: int = BATCH) -> dict[str, int]:
    """Run one round. Return how many rows of each kind were deleted.

    A kind that fails does not stop the others: its fault is raised after all have had their turn.
    """
    return _of_each(lambda kind: in_batches(lambda: {kind: _once(units, kind, batch)}, batch, MOST_BATCHES)[kind])


def sweep_once(units: UnitOfWorkFactory, *, batch: int = BATCH) -> dict[str, int]:
    """Delete expired rows, at most ``batch`` of each kind. Return how many of each were deleted."""
    return _of_each(lambda kind: _once(units, kind, batch))


def _of_each(work: Callable[[str], int]) -> dict[str, int]:
    swept: dict[str, int] = {}
    faults: list[Exception] = []
    for kind in _DROPS:
        try:
            swept[kind] = work(kind)
        except Exception as fault:  # noqa: BLE001  # raised below, whatever it is
            fault.add_note(f"deleting {kind}")
            faults.append(fault)
    if faults:
        raise faults[0]
    return swept


def _once(units: UnitOfWorkFactory, kind: str, batch: int) -> int:
    with units.begin(_PRINCIPAL, ACTION, quiet=True) as unit:
        return _DROPS[kind](unit, batch)


def _drop_events(unit: UnitOfWork, batch: int) -> int:
    """Delete only events with a position: an event that no consumer could have read yet stays."""
    before = unit.now - timedelta(days=active_policy(unit.session).retention.events_days)
    return _drop(unit, Event, Event.at, (Event.at < before) & Event.position.is_not(None), batch)


def _drop_messages(unit: UnitOfWork, batch: int) -> int:
    over_at = func.least(OutboxMessage.sent_at, OutboxMessage.dead_at)
    before = unit.now - timedelta(days=active_policy(unit.session).retention.outbox_days)
    return _drop(unit, OutboxMessage, over_at, over_at < before, batch)


def _drop_logs(unit: UnitOfWork, batch: int) -> int:
    before = unit.now - timedelta(days=active_policy(unit.session).retention.logs_days)
    return _drop(unit, LogChunk, LogChunk.received_at, LogChunk.received_at < before, batch)


def _drop_keys(unit: UnitOfWork, batch: int) -> int:
    before = unit.now - timedelta(hours=active_policy(unit.session).limits.idempotency_hours)
    return _drop(unit, IdempotencyKey, IdempotencyKey.created_at, IdempotencyKey.created_at < before, batch)


def _drop(
    unit: UnitOfWork, table: type[Base], age: SQLColumnExpression[Any], is_over: ColumnElement[bool], batch: int
) -> int:
    """Delete the oldest rows. An index by ``age`` finds them and their places do the rest, however large the table."""
    place: ColumnElement[Any] = literal_column("ctid")
    doomed = select(place).select_from(table).where(is_over).order_by(age).limit(batch).scalar_subquery()
    statement = delete(table).where(place == any_(func.array(doomed))).returning(age)
    return len(unit.session.execute(statement.execution_options(synchronize_session=False)).all())


def _drop_storage_faults(unit: UnitOfWork, batch: int) -> int:
    """Delete faults that no longer stand: events record the past."""
    take_turn(unit)
    policy = active_policy(unit.session).training.storage
    key = (StorageFault.place, StorageFault.node_id, StorageFault.job_id)
    doomed = select(*key).where(not_(is_standing(unit.now, policy))).order_by(*key).limit(batch)
    statement = delete(StorageFault).where(tuple_(*key).in_(doomed)).returning(StorageFault.place)
    return len(unit.session.execute(statement.execution_options(synchronize_session=False)).all())


_DROPS: Final[Mapping[str, Callable[[UnitOfWork, int], int]]] = {
    "events": _drop_events,
    "outbox": _drop_messages,
    "logs": _drop_logs,
    "idempotency_keys": _drop_keys,
    "storage_faults": _drop_storage_faults,
}
