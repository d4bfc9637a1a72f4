"""Hours of the ledger: computed when they are over, closed when no host can report about them, corrected afterwards.

    13:00   the hour 12 is over
    13:05   it is computed: provisional, 3 hosts may still report about it
    13:20   one host of them has reported: it is computed again, and its entries are replaced
    14:05   all have: it is computed again and closed
    15:40   a host was offline, and reports steps of 12:30: correction entries, revision 1
    39:00   26 hours after its end the last look, which also closes an hour for which a host never reported

A worker takes an hour by moving its ``due_at`` on, so that no other one computes it meanwhile. It reads and computes
in one snapshot, and writes in one transaction: entries, facts, the hour and its event. It writes only if the hour is
still as it took it. A worker that dies leaves an hour that is due again after ``LEASE``.

A closed hour is final once retention drops steps, verdicts, events or entries of its age: the facts that still stand
would give other entries. A report about it that comes later changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select, text

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.ledger.loading import facts_of
from control.ledger.marks import gaps_of, joined_gaps, num_awaited
from control.ledger.measuring import measured_in
from control.ledger.reading import Window
from control.ledger.storing import add_entries, remove_entries, store_facts, stored_entries
from control.policy.policies import active_policy
from ledger.books import Book, book_of
from ledger.entries import Entry, corrections, in_old_places
from ledger.figures.hours import CLOSES_AFTER, HOUR
from muster.db.models import LedgerHour
from muster.domain.principals import system_principal
from muster.domain.times import to_ms
from muster.failpoints import declare, failpoint

TAKE: Final = declare_action("ledger.take_hour")
STORE: Final = declare_action("ledger.store_hour")
REMOVED: Final = declare("ledger.entries_removed")
ADDED: Final = declare("ledger.entries_added")
SUMMED: Final = declare("ledger.facts_stored")
SETTLES: Final = timedelta(minutes=5)
"""After its end an hour is first computed so much later."""
LEASE: Final = timedelta(minutes=20)
AGAIN: Final = timedelta(minutes=15)
_PRINCIPAL: Final = system_principal("ledger")
_IS_DUE: Final = """
SELECT 1 WHERE EXISTS (SELECT FROM ledger_hours WHERE due_at <= %(now)s)
    OR (SELECT max(hour) FROM ledger_hours) < date_trunc('hour', %(now)s::timestamptz, 'UTC') - interval '1 hour'
    OR NOT EXISTS (SELECT FROM ledger_hours)
"""
_ADD_HOURS: Final = text("""
INSERT INTO ledger_hours (hour, computed_at, revision, num_gpus, capacity_ms, unexplained_ms, awaits, gaps, due_at)
SELECT made.hour, :now, 0, 0, 0, 0, 0, '{}', made.hour + :after
FROM generate_series(
    coalesce(
        (SELECT max(hour) + interval '1 hour' FROM ledger_hours),
        date_trunc('hour', greatest(
            (SELECT at FROM gpu_standing_changes ORDER BY id LIMIT 1), (SELECT min(at) FROM node_contact_changes)
        ), 'UTC')
    ),
    date_trunc('hour', CAST(:now AS timestamptz), 'UTC') - interval '1 hour', interval '1 hour'
) AS made (hour)
ON CONFLICT (hour) DO NOTHING
""")
_MAKE_FINAL: Final = text("""
UPDATE ledger_hours SET due_at = NULL WHERE due_at <= :now AND closed_at IS NOT NULL AND hour < :kept_since
""")
_TAKE: Final = text("""
UPDATE ledger_hours SET due_at = :leased_until WHERE hour = (
    SELECT hour FROM ledger_hours WHERE due_at <= :now ORDER BY hour LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING hour
""")


@dataclass(frozen=True, slots=True)
class Taken:
    """An hour that this worker computes. ``due_at``: what others see meanwhile."""

    hour: datetime
    due_at: datetime

    @property
    def end(self) -> datetime:
        return self.hour + HOUR


@dataclass(frozen=True, slots=True)
class Computed:
    """What the database says of an hour in one snapshot. ``book`` None: it would say no more than the last time."""

    awaits: int
    book: Book | None
    gaps: dict[str, Any]


def keep_ledger_once(units: UnitOfWorkFactory) -> bool:
    """Compute the oldest hour that is due. Return whether there was one."""
    if not units.ask(_IS_DUE, {"now": units.clock()}):
        return False
    taken = _take(units)
    if taken is None:
        return False
    computed = _compute(units, taken)
    with units.begin(_PRINCIPAL, STORE, quiet=True) as unit:  # its closing and its corrections leave events
        _store(unit, taken, computed)
    return True


def _take(units: UnitOfWorkFactory) -> Taken | None:
    with units.begin(_PRINCIPAL, TAKE, quiet=True) as unit:
        unit.session.execute(_ADD_HOURS, {"now": unit.now, "after": HOUR + SETTLES})
        unit.session.execute(_MAKE_FINAL, {"now": unit.now, "kept_since": _facts_kept_since(unit)})
        due_at = unit.now + LEASE
        hour = unit.session.scalar(_TAKE, {"now": unit.now, "leased_until": due_at})
    return None if hour is None else Taken(hour, due_at)


def _facts_kept_since(unit: UnitOfWork) -> datetime:
    """Return since when all facts are kept that an hour is computed from, and its entries."""
    kept = active_policy(unit.session).retention
    days = min(kept.steps_days, kept.verdicts_days, kept.events_days, kept.ledger_entries_days)
    return unit.now - timedelta(days=days)


def _compute(units: UnitOfWorkFactory, taken: Taken) -> Computed:
    start_ms, end_ms = to_ms(taken.hour), to_ms(taken.end)
    with units.read() as session:
        window = Window(session, start_ms, end_ms)
        awaits = num_awaited(window)
        known = session.get_one(LedgerHour, taken.hour)
        is_over = units.clock() >= taken.end + CLOSES_AFTER
        if known.closed_at is None and known.num_gpus and awaits and awaits == known.awaits and not is_over:
            return Computed(awaits, None, known.gaps)
        facts, gaps = facts_of(session, start_ms, end_ms), dict(gaps_of(window))
    return Computed(awaits, book_of(facts), gaps)


def _store(unit: UnitOfWork, taken: Taken, computed: Computed) -> None:
    query = select(LedgerHour).where(LedgerHour.hour == taken.hour, LedgerHour.due_at == taken.due_at)
    hour = unit.session.scalar(query.with_for_update())
    if hour is None:  # a report about it came meanwhile, or this worker stood still for long
        return
    over_at = taken.end + CLOSES_AFTER
    if computed.book is None:
        hour.due_at = min(unit.now + AGAIN, over_at)
        return
    if hour.closed_at is None:
        _replace(unit, hour, computed.book)
        hour.awaits = computed.awaits
        if not computed.awaits or unit.now >= over_at:
            _close(unit, hour)
    else:
        _correct(unit, hour, computed.book)
    hour.computed_at, hour.gaps = unit.now, joined_gaps(hour.gaps, computed.gaps)
    hour.num_gpus, hour.capacity_ms = computed.book.num_gpus, computed.book.capacity_ms
    hour.unexplained_ms = computed.book.unexplained_ms
    hour.measured = measured_in(unit.session, hour.hour)
    if hour.closed_at is None:
        hour.due_at = min(unit.now + AGAIN, over_at)
    else:
        hour.due_at = over_at if unit.now < over_at else None


def _replace(unit: UnitOfWork, hour: LedgerHour, book: Book) -> None:
    remove_entries(unit.session, hour.hour)
    failpoint(REMOVED)
    _add(unit, hour, book.entries)


def _close(unit: UnitOfWork, hour: LedgerHour) -> None:
    hour.closed_at = unit.now
    unit.emit("ledger.hour_closed", "ledger", hour.hour.isoformat(), payload={"awaits": hour.awaits})


def _correct(unit: UnitOfWork, hour: LedgerHour, book: Book) -> None:
    """Add what is different by now. A closed hour's entries are never changed."""
    stored = list(stored_entries(unit.session, hour.hour))
    found = corrections(stored, in_old_places(stored, book.entries))
    if not found:
        return
    hour.revision += 1
    _add(unit, hour, found)
    payload = {"revision": hour.revision, "moved_ms": sum(max(0, ms) for entry in found for ms in entry.gpu_ms)}
    unit.emit("ledger.hour_corrected", "ledger", hour.hour.isoformat(), payload=payload)


def _add(unit: UnitOfWork, hour: LedgerHour, entries: Sequence[Entry]) -> None:
    add_entries(unit.session, hour.hour, hour.revision, entries)
    failpoint(ADDED)
    store_facts(unit.session, hour.hour)
    failpoint(SUMMED)
