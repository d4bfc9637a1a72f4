"""From events to notifications: each event that a route takes becomes one notification of that route, and never two.

Events are read by position, so none that commits late is skipped. The cursor moves in the transaction that stores the
notifications, and a notification is unique by route and event: a worker that dies, or two at once, leave no gap and no
double.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from muster.db.models import Event, Job, Node, Notification, NotificationRoute, Tenant
from muster.db.queries.events import cursor_of, events_after, move_cursor, newest_position
from muster.domain.ids import NotificationId
from muster.domain.notifications.events import TEST_KIND, Fact, Subscription
from muster.domain.notifications.notes import note_of
from muster.domain.notifications.retries import TRIED_FOR
from muster.domain.notifications.routes import NotificationState
from muster.domain.principals import system_principal
from muster.identity import new_id

FAN_OUT: Final = declare_action("notification.fan_out")
BATCH: Final = 500
CONSUMER: Final = "notifications"
_PRINCIPAL: Final = system_principal("notifier")
_LOCK: Final = 0x5AFE_0077
_PENDING: Final = """
    SELECT (SELECT position FROM sequence_heads WHERE name = 'events')
        > coalesce((SELECT position FROM consumer_cursors WHERE name = %(name)s), -1) AS is_pending
"""


def has_news(units: UnitOfWorkFactory) -> bool:
    """Return whether there are events behind the cursor. Raises ``UnavailableError``."""
    return bool(units.ask(_PENDING, {"name": CONSUMER})[0].is_pending)


def fan_out_once(units: UnitOfWorkFactory, *, batch: int = BATCH) -> bool:
    """Make the notifications of the next ``batch`` events. Return whether there were any events."""
    with units.begin(_PRINCIPAL, FAN_OUT, quiet=True) as unit:
        if not unit.session.scalar(select(func.pg_try_advisory_xact_lock(_LOCK))):
            return False
        newest = newest_position(unit.session)
        routes = unit.session.scalars(select(NotificationRoute).where(NotificationRoute.off_reason.is_(None))).all()
        # What no route takes is not read: nothing before the oldest of them, and nothing at all where there is none.
        begin = min((route.from_position for route in routes), default=newest)
        events = events_after(unit.session, max(begin, cursor_of(unit.session, CONSUMER)), limit=batch)
        if not events:
            move_cursor(unit.session, CONSUMER, newest)
            return False
        pairs = [(route, event) for event in events for route in routes if _takes(route, event)]
        if pairs:
            names = _names_of(unit.session, [event for _, event in pairs])
            rows = [{**_row(route, _fact(event, names)), "position": event.position} for route, event in pairs]
            times = {"created_at": unit.now, "next_try_at": unit.now, "expires_at": unit.now + TRIED_FOR}
            unit.session.execute(
                insert(Notification).on_conflict_do_nothing(index_elements=["route_id", "event_id"]),
                [{**row, **times} for row in rows],
            )
            unit.wake("muster_notifications")
        move_cursor(unit.session, CONSUMER, events[-1].position or 0)
    return True


def _takes(route: NotificationRoute, event: Event) -> bool:
    if route.tenant_id not in {None, event.tenant_id} or (event.position or 0) <= route.from_position:
        return False
    if event.kind == TEST_KIND:
        return event.subject_id == route.id
    return Subscription(tuple(route.kinds), route.least).takes(_fact(event, {}))


def _fact(event: Event, names: dict[str, str]) -> Fact:
    own = {name: names[name] for name in _ids_in(event) if name in names}
    return Fact(
        event.id, event.kind, event.at, event.subject_type, event.subject_id, event.tenant_id, event.payload, own
    )


def _ids_in(event: Event) -> Iterable[str]:
    yield event.subject_id
    yield from (str(value) for value in (event.tenant_id, event.payload.get("subject_id")) if value)


def _names_of(session: Session, events: Sequence[Event]) -> dict[str, str]:
    ids = {name for event in events for name in _ids_in(event)}
    names: dict[str, str] = {}
    for table in (Job, Node, Tenant):
        found = session.execute(select(table.id, table.name).where(table.id.in_(ids)))
        names.update((row.id, row.name) for row in found)
    return names


def _row(route: NotificationRoute, fact: Fact) -> dict[str, Any]:
    return {
        "id": NotificationId(new_id("notification")),
        "route_id": route.id,
        "event_id": fact.id,
        "fact": stored(fact),
        "title": note_of(fact).title,
        "severity": fact.severity,
        "state": NotificationState.PENDING,
        "tries": 0,
    }


def stored(fact: Fact) -> dict[str, Any]:
    """Return the fact as a notification's row has it; ``read_fact`` reads it."""
    return {
        "id": fact.id,
        "kind": fact.kind,
        "at": fact.at.isoformat(),
        "subject_type": fact.subject_type,
        "subject_id": fact.subject_id,
        "tenant_id": fact.tenant_id,
        "payload": dict(fact.payload),
        "names": dict(fact.names),
    }
