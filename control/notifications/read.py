"""Notifications, to read: what went out over a route, each try, and sending one again."""

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import select

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time
from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see
from muster.db.models import Notification, NotificationRoute, NotificationTry
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import EventId, NotificationId, RouteId
from muster.domain.notifications.retries import TRIED_FOR
from muster.domain.notifications.routes import NotificationState
from muster.domain.principals import Permission

READ: Final = declare_action("notification.read")
RESEND: Final = declare_action("notification.resend")
SORTS: Final = by_time(SortKey(Notification.id, attrgetter("id")))


class NotificationRecord(msgspec.Struct, frozen=True):
    """One notification. ``fact``: the event as it is sent. ``last_words``: how the newest try ended."""

    id: NotificationId
    route_id: RouteId
    event_id: EventId
    fact: dict[str, Any]
    title: str
    severity: str
    state: str
    created_at: datetime
    next_try_at: datetime
    tries: int
    ended_at: datetime | None
    last_words: str | None


class TryRecord(msgspec.Struct, frozen=True):
    """One try. ``status``: of HTTP or SMTP; None: there was no answer."""

    number: int
    at: datetime
    took_ms: int
    outcome: str
    words: str
    status: int | None


def list_notifications(
    unit: UnitOfWork,
    route_id: RouteId,
    part: Part,
    *,
    state: NotificationState | None = None,
    span: Span = ALWAYS,
) -> Sequence[NotificationRecord]:
    """Return a route's notifications, the newest first unless ``part`` says otherwise. Raises ``NotFoundError``."""
    _required_route(unit, route_id, Permission.ROUTE_READ)
    query = select(Notification).where(Notification.route_id == route_id, *span.conditions(Notification.created_at))
    if state is not None:
        query = query.where(Notification.state == state)
    return records_of(unit.session.scalars(part.of(query, SORTS[TimeOrder.NEWEST])), NotificationRecord)


def get(unit: UnitOfWork, route_id: RouteId, notification_id: NotificationId) -> NotificationRecord:
    """Return one notification of a route. Raises ``NotFoundError``."""
    return record_of(_found(unit, route_id, notification_id, Permission.ROUTE_READ), NotificationRecord)


def tries_of(unit: UnitOfWork, notification_id: NotificationId) -> Sequence[TryRecord]:
    """Return the tries of a notification that the caller has found visible, the newest first."""
    unit.principal.require(Permission.ROUTE_READ)
    query = select(NotificationTry).where(NotificationTry.notification_id == notification_id)
    return records_of(unit.session.scalars(query.order_by(NotificationTry.number.desc())), TryRecord)


def resend(unit: UnitOfWork, route_id: RouteId, notification_id: NotificationId) -> NotificationRecord:
    """Send a notification again, now, with the same id: its receiver can see that it is the same effect.

    Raises:
        NotFoundError: there is none, or its route is another owner's.
        ConflictError: its route is off.
    """
    # The route is locked first, as where results are stored.
    route = _required_route(unit, route_id, Permission.ROUTE_WRITE, is_locked=True)
    row = _found(unit, route_id, notification_id, Permission.ROUTE_WRITE)
    if route.off_reason is not None:
        message = f"the route {route.name} is off: {route.off_reason}"
        raise ConflictError(message, suggestion="Change the route, which turns it on.")
    row.state, row.ended_at = NotificationState.PENDING, None
    row.next_try_at, row.expires_at, row.num_refusals = unit.now, unit.now + TRIED_FOR, 0
    route.paused_until = None
    detail = {"notification_id": row.id, "route": route.name, "title": row.title}
    unit.emit("route.notification_resent", "route", route.id, tenant_id=route.tenant_id, payload=detail)
    unit.audit("notification.resend", "route", route.id, tenant_id=route.tenant_id, detail=detail)
    unit.wake("muster_notifications")
    unit.session.flush()
    return record_of(row, NotificationRecord)


def _found(
    unit: UnitOfWork, route_id: RouteId, notification_id: NotificationId, permission: Permission
) -> Notification:
    _required_route(unit, route_id, permission)
    row = unit.session.get(Notification, notification_id, with_for_update=permission is Permission.ROUTE_WRITE)
    if row is None or row.route_id != route_id:
        raise NotFoundError
    return row


def _required_route(
    unit: UnitOfWork, route_id: RouteId, permission: Permission, *, is_locked: bool = False
) -> NotificationRoute:
    unit.principal.require(permission)
    row = unit.session.get(NotificationRoute, route_id, with_for_update=is_locked)
    if row is None or row.deleted_at is not None or not may_see(unit.principal, row.tenant_id):
        raise NotFoundError
    return row
