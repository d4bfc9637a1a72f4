"""Routes and notifications as the JSON that callers see."""

from collections.abc import Sequence

from api.views import time_of
from control.notifications.delivery import read_fact
from control.notifications.read import NotificationRecord, TryRecord
from control.notifications.routes import RouteRecord
from muster import documents
from muster.domain.notifications.notes import note_of
from muster.domain.notifications.routes import NotificationState


def route_view(route: RouteRecord) -> documents.NotificationRoute:
    return {
        "id": route.id,
        "tenant_id": route.tenant_id,
        "name": route.name,
        "kind": route.kind,
        "target": route.target,
        "kinds": route.kinds,
        "least": route.least,
        "version": route.version,
        "created_at": time_of(route.created_at),
        "created_by": route.created_by,
        "updated_at": time_of(route.updated_at),
        "num_failures": route.num_failures,
        "paused_until": time_of(route.paused_until),
        "off_reason": route.off_reason,
    }


def summary_view(row: NotificationRecord) -> documents.NotificationSummary:
    is_pending = row.state == NotificationState.PENDING
    return {
        "id": row.id,
        "event_id": row.event_id,
        "event_kind": row.fact["kind"],
        "title": row.title,
        "severity": row.severity,
        "state": row.state,
        "created_at": time_of(row.created_at),
        "next_try_at": time_of(row.next_try_at) if is_pending else None,
        "ended_at": time_of(row.ended_at),
        "num_tries": row.tries,
        "last_words": row.last_words,
    }


def notification_view(row: NotificationRecord, tries: Sequence[TryRecord]) -> documents.Notification:
    return {
        **summary_view(row),
        "text": note_of(read_fact(row.fact)).text,
        "payload": row.fact["payload"],
        "tries": [_try_view(one) for one in tries],
    }


def _try_view(one: TryRecord) -> documents.NotificationTry:
    return {
        "number": one.number,
        "at": time_of(one.at),
        "took_ms": one.took_ms,
        "outcome": one.outcome,
        "words": one.words,
        "status": one.status,
    }
