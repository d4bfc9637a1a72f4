"""From events to notifications: each event that a route takes becomes one notification of that route, and never two.

Events are read by position, so none that commits late is skipped. The cursor moves in the transaction that stores the
notifications, and a notification is unique by route and event: a worker that dies, or two at once, leave no gap and no
double.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from muster.db.models import Event, Job, Node, Notification, NotificationRoute, Tenant
from muster.db.queries.events import cursor_of, events_after, move_cursor, newest_position
from muster.domain.ids import NotificationId, RouteId, TenantId
from muster.domain.notifications.events import CLOSED, TEST_KIND, Fact, Subscription
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
        # Read first: a route that is committed later begins behind this position, and events up to it are read now.
        newest = newest_position(unit.session)
        routes = _routes(unit.session)
        # What no route takes is not read: nothing before the oldest of them, and nothing at all where there is none.
        begin = min((route.from_position for route in routes), default=newest)
        begin = max(begin, cursor_of(unit.session, CONSUMER))
        events = events_after(unit.session, begin, Event.position <= newest, limit=batch)
        if not events:
            move_cursor(unit.session, CONSUMER, newest)
            return False
        rows = _rows_of(unit.session, routes, events)
        if rows:
            times = {"created_at": unit.now, "next_try_at": unit.now, "expires_at": unit.now + TRIED_FOR}
            unit.session.execute(
                insert(Notification).on_conflict_do_nothing(index_elements=["route_id", "event_id"]),
                [{**row, **times} for row in rows],
            )
            unit.wake("muster_notifications")
        move_cursor(unit.session, CONSUMER, events[-1].position or 0)
    return True


@dataclass(frozen=True, slots=True)
class _Route:
    """What the fan-out needs of a route."""

    id: RouteId
    tenant_id: TenantId | None
    subscription: Subscription
    from_position: int


def _routes(session: Session) -> list[_Route]:
    """Return the routes that are on, kept from being removed until the notifications are stored."""
    row = NotificationRoute
    query = select(row.id, row.tenant_id, row.kinds, row.least, row.from_position)
    found = session.execute(query.where(row.off_reason.is_(None)).with_for_update(key_share=True, read=True))
    return [
        _Route(one.id, one.tenant_id, Subscription(tuple(one.kinds), one.least), one.from_position) for one in found
    ]


def _rows_of(session: Session, routes: Sequence[_Route], events: Sequence[Event]) -> list[dict[str, Any]]:
    by_owner: dict[TenantId | None, list[_Route]] = {}
    for route in routes:
        by_owner.setdefault(route.tenant_id, []).append(route)
    sent = _sent_about(session, [event.subject_id for event in events if event.kind == CLOSED])
    names: dict[str, str] | None = None
    rows = []
    for event in events:
        fact = _fact(event, {})
        own = by_owner.get(event.tenant_id, []) if event.tenant_id is not None else []
        takers = [route for route in (*by_owner.get(None, ()), *own) if _takes(route, event, fact, sent)]
        if takers:
            names = _names_of(session, events) if names is None else names
            named = _fact(event, names)
            sent.update((route.id, event.subject_id) for route in takers)
            rows += [{**_row(route.id, named), "position": event.position} for route in takers]
    return rows


def _sent_about(session: Session, subject_ids: Sequence[str]) -> set[tuple[RouteId, str]]:
    """Return which routes have a notification about which of these incidents."""
    query = select(Notification.route_id, Notification.subject_id).where(Notification.subject_id.in_(subject_ids))
    return {(row.route_id, row.subject_id) for row in session.execute(query.distinct())} if subject_ids else set()


def _takes(route: _Route, event: Event, fact: Fact, sent: AbstractSet[tuple[RouteId, str]]) -> bool:
    if (event.position or 0) <= route.from_position:
        return False
    if event.kind == TEST_KIND:
        return event.subject_id == route.id
    return route.subscription.takes(fact, has_sent=(route.id, event.subject_id) in sent)


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


def _row(route_id: RouteId, fact: Fact) -> dict[str, Any]:
    return {
        "id": NotificationId(new_id("notification")),
        "route_id": route_id,
        "event_id": fact.id,
        "subject_id": fact.subject_id,
        "fact": stored(fact),
        "title": note_of(fact).title,
        "severity": fact.severity,
        "state": NotificationState.PENDING,
        "tries": 0,
        "num_refusals": 0,
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
