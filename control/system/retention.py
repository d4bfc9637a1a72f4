"""Retention: jobs, attempts and the audit chain stay; rows that only explain them are deleted by age.

It works in small batches of one kind, each a transaction, so that no lock is held for long. A round repeats them until
nothing is left, or it has made ``MOST_BATCHES``; then the next round follows at once. One worker deletes
several times as fast as rows of these kinds can be stored (decision 58). Output of jobs, of which more can be stored,
is dropped by day (``control.system.log_days``). Steps of old attempts are thinned (``control.system.step_thinning``).
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import takewhile
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    SQLColumnExpression,
    column,
    delete,
    exists,
    false,
    func,
    not_,
    select,
    table,
    tuple_,
    update,
)
from sqlalchemy.orm import aliased

from control.core.batches import delete_oldest, in_batches
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.health import rollups
from control.incidents.storage_attribution import is_standing, take_turn
from control.policy.policies import active_policy
from control.system import log_days
from control.system.step_thinning import thin_steps
from control.watch.learning import counts_since
from muster.db.base import Base, UtcTimestamp
from muster.db.models import (
    Attempt,
    AttemptTransport,
    Event,
    FigureFact,
    GpuHoldSpan,
    GpuSpare,
    IdempotencyKey,
    Incident,
    Job,
    JobWaitChange,
    LedgerEntry,
    LedgerFact,
    LineFindingRow,
    NodeContactChange,
    Notification,
    NotificationRoute,
    OutboxMessage,
    StallReport,
    StorageFault,
    VerdictRow,
)
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.notifications.routes import NotificationState
from muster.domain.principals import system_principal
from muster.domain.states import AttemptState

ACTION: Final = declare_action("retention.sweep")
BATCH: Final = 2_000
_HOUR_S: Final = 3_600
MOST_BATCHES: Final = 100
_MADE: Final = "log_days_made"
_MOST_MADE: Final = log_days.DAYS_AHEAD + 2
_PRINCIPAL: Final = system_principal("retention")


def sweep(units: UnitOfWorkFactory, *, batch: int = BATCH, most_batches: int = MOST_BATCHES) -> dict[str, int]:
    """Run one round. Return how many rows of each kind were deleted.

    A kind that fails does not stop the others: its fault is raised after all have had their turn.
    """
    return _of_each(lambda kind: in_batches(lambda: {kind: _once(units, kind, batch)}, batch, most_batches)[kind])


def is_behind(swept: Mapping[str, int], *, batch: int = BATCH) -> bool:
    """Return whether a round has left something of a kind: the next one is due at once."""
    return any(number >= batch * MOST_BATCHES for number in swept.values())


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
    def once() -> int:
        with units.begin(_PRINCIPAL, ACTION, quiet=True) as unit:
            return _DROPS[kind](unit, batch)

    # Each day has a transaction of its own: a day that fails undoes no other.
    return once() if kind != _MADE else sum(takewhile(bool, (once() for _ in range(_MOST_MADE))))


def _drop_events(unit: UnitOfWork, batch: int) -> int:
    """Delete only events with a position: an event that no consumer could have read yet stays."""
    before = unit.now - timedelta(days=active_policy(unit.session).retention.events_days)
    return delete_oldest(unit, Event, Event.at, (Event.at < before) & Event.position.is_not(None), batch)


def _drop_messages(unit: UnitOfWork, batch: int) -> int:
    over_at = func.least(OutboxMessage.sent_at, OutboxMessage.dead_at)
    before = unit.now - timedelta(days=active_policy(unit.session).retention.outbox_days)
    return delete_oldest(unit, OutboxMessage, over_at, over_at < before, batch)


def _drop_logs(unit: UnitOfWork, batch: int) -> int:
    """Delete rows of the tables that hold no single day; ``log_days`` drops days."""
    before = log_days.expired_before(unit)
    num_deleted = 0
    for name in log_days.tables_by_row(unit):
        rows = table(name, column("received_at", UtcTimestamp()))
        is_over = rows.c.received_at < before
        num_deleted += delete_oldest(unit, rows, rows.c.received_at, is_over, batch - num_deleted)
        if num_deleted >= batch:
            break
    return num_deleted


def _make_day(unit: UnitOfWork, _batch: int) -> int:
    return log_days.make_day(unit)


def _drop_days(unit: UnitOfWork, _batch: int) -> int:
    return log_days.drop_days(unit)


def _drop_keys(unit: UnitOfWork, batch: int) -> int:
    before = unit.now - timedelta(hours=active_policy(unit.session).limits.idempotency_hours)
    return delete_oldest(unit, IdempotencyKey, IdempotencyKey.created_at, IdempotencyKey.created_at < before, batch)


def _drop_stall_reports(unit: UnitOfWork, batch: int) -> int:
    """Delete stacks of ranks, which are a tenant's as its output is. The verdict with its sentence stays."""
    before = log_days.expired_before(unit)
    return delete_oldest(unit, StallReport, StallReport.received_at, StallReport.received_at < before, batch)


def _drop_verdicts(unit: UnitOfWork, batch: int) -> int:
    """Delete verdicts on attempts that have ended. False alarms that count stay, and so does all evidence."""
    policy = active_policy(unit.session)
    is_over = (
        (VerdictRow.created_at < unit.now - timedelta(days=policy.retention.verdicts_days))
        & exists().where(Attempt.id == VerdictRow.attempt_id, Attempt.state == AttemptState.ENDED)
        & not_(func.coalesce(counts_since(unit.now, policy.watch), false()))
        & ~exists().where(
            Incident.kind == IncidentKind.JOB_STALLED,
            Incident.closed_at.is_(None),
            Incident.payload["verdict_id"].astext == VerdictRow.id,
        )
    )
    return delete_oldest(unit, VerdictRow, VerdictRow.created_at, is_over, batch)


def _drop_line_findings(unit: UnitOfWork, batch: int) -> int:
    """Delete lines about faults, which are a tenant's as its output is."""
    is_over = LineFindingRow.received_at < log_days.expired_before(unit)
    return delete_oldest(unit, LineFindingRow, LineFindingRow.received_at, is_over, batch)


def _drop_transports(unit: UnitOfWork, batch: int) -> int:
    is_over = AttemptTransport.received_at < log_days.expired_before(unit)
    return delete_oldest(unit, AttemptTransport, AttemptTransport.received_at, is_over, batch)


def _drop_storage_faults(unit: UnitOfWork, batch: int) -> int:
    """Delete faults that no longer stand: events record the past."""
    take_turn(unit)
    policy = active_policy(unit.session).training.storage
    key = (StorageFault.place, StorageFault.node_id, StorageFault.job_id)
    doomed = select(*key).where(not_(is_standing(unit.now, policy))).order_by(*key).limit(batch)
    statement = delete(StorageFault).where(tuple_(*key).in_(doomed)).returning(StorageFault.place)
    return len(unit.session.execute(statement.execution_options(synchronize_session=False)).all())


def _drop_ledger_entries(unit: UnitOfWork, batch: int) -> int:
    """Delete entries of hours that no statement can ask for any more; the hours' own rows stay.

    An hour goes as a whole, however many entries it has: half of one has wrong sums.
    """
    before = unit.now - timedelta(days=active_policy(unit.session).retention.ledger_entries_days)
    oldest = select(LedgerEntry.hour).where(LedgerEntry.hour < before).order_by(LedgerEntry.hour).limit(batch)
    newest = unit.session.scalar(select(func.max(oldest.subquery().c.hour)))
    if newest is None:
        return 0
    statement = delete(LedgerEntry).where(LedgerEntry.hour <= newest).returning(LedgerEntry.hour)
    return len(unit.session.execute(statement.execution_options(synchronize_session=False)).all())


def _drop_ledger_facts(unit: UnitOfWork, batch: int) -> int:
    before = unit.now - timedelta(days=active_policy(unit.session).retention.ledger_facts_days)
    return delete_oldest(unit, LedgerFact, LedgerFact.begins_at, LedgerFact.begins_at < before, batch)


def _drop_ledger_history(unit: UnitOfWork, batch: int) -> int:
    """Delete what hours were counted from that are no longer kept; the contact that a node had at the cut-off stays."""
    before = unit.now - timedelta(days=active_policy(unit.session).retention.ledger_entries_days)
    newer = aliased(NodeContactChange)
    is_later = (newer.at > NodeContactChange.at) & (newer.at <= before)
    is_replaced = exists().where(newer.node_id == NodeContactChange.node_id, is_later)
    is_ended = exists().where(Job.id == JobWaitChange.job_id, Job.finished_at < before)
    kinds: tuple[tuple[type[Base], SQLColumnExpression[Any], ColumnElement[bool]], ...] = (
        (GpuHoldSpan, GpuHoldSpan.ended_at, GpuHoldSpan.ended_at < before),
        (GpuSpare, GpuSpare.ended_at, GpuSpare.ended_at < before),
        (JobWaitChange, JobWaitChange.at, (JobWaitChange.at < before) & is_ended),
        (NodeContactChange, NodeContactChange.at, (NodeContactChange.at < before) & is_replaced),
    )
    num_deleted = 0
    for kind in kinds:
        num_deleted += delete_oldest(unit, *kind, batch - num_deleted)
        if num_deleted >= batch:
            break
    return num_deleted


def _drop_notifications(unit: UnitOfWork, batch: int) -> int:
    """Give up what has expired, or is of a route that is off; delete what has ended, and routes that are deleted."""
    before = unit.now - timedelta(days=active_policy(unit.session).notifications.keep_days)
    row, route = Notification, NotificationRoute
    _give_up(unit, row.expires_at <= unit.now, batch)
    if off := unit.session.scalars(select(route.id).where(route.off_reason.is_not(None))).all():
        _give_up(unit, row.route_id.in_(off), batch)
    num_deleted = delete_oldest(unit, row, row.ended_at, row.ended_at < before, batch)
    if deleted := unit.session.scalars(select(route.id).where(route.deleted_at.is_not(None))).all():
        is_theirs = row.route_id.in_(deleted) & row.ended_at.is_not(None)
        num_deleted += delete_oldest(unit, row, row.created_at, is_theirs, batch - num_deleted)
        is_empty = ~exists().where(row.route_id == route.id)
        unit.session.execute(delete(route).where(route.id.in_(deleted), is_empty))
    return num_deleted


def _give_up(unit: UnitOfWork, condition: ColumnElement[bool], batch: int) -> None:
    is_pending = Notification.state == NotificationState.PENDING
    over = select(Notification.id).where(is_pending, condition).limit(batch)
    ended = {"state": NotificationState.GIVEN_UP, "ended_at": unit.now}
    unit.session.execute(update(Notification).where(Notification.id.in_(over), is_pending).values(ended))


def _drop_figures(unit: UnitOfWork, batch: int) -> int:
    """Delete facts of hours whose day is summed."""
    day = aliased(FigureFact)
    is_over = (
        (FigureFact.begins_at < unit.now - timedelta(days=active_policy(unit.session).retention.figures_days))
        & (FigureFact.span_s == _HOUR_S)
        & exists().where(
            day.begins_at == func.date_trunc("day", FigureFact.begins_at, "UTC"),
            day.span_s > _HOUR_S,
            day.figure == FigureFact.figure,
        )
    )
    return delete_oldest(unit, FigureFact, FigureFact.begins_at, is_over, batch)


_DROPS: Final[Mapping[str, Callable[[UnitOfWork, int], int]]] = {
    _MADE: _make_day,
    "log_days": _drop_days,
    "logs_moved": log_days.move_aside,
    "events": _drop_events,
    "outbox": _drop_messages,
    "logs": _drop_logs,
    "idempotency_keys": _drop_keys,
    "stall_reports": _drop_stall_reports,
    "verdicts": _drop_verdicts,
    "line_findings": _drop_line_findings,
    "attempt_transports": _drop_transports,
    "storage_faults": _drop_storage_faults,
    "training_steps": thin_steps,
    "ledger_entries": _drop_ledger_entries,
    "ledger_facts": _drop_ledger_facts,
    "ledger_history": _drop_ledger_history,
    "notifications": _drop_notifications,
    "rollups": rollups.drop_expired,
    "figures": _drop_figures,
}
