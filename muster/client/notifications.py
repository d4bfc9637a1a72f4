"""Calls for the routes by which events leave the system, and for what went out over them."""

from collections.abc import Mapping
from typing import Final, Unpack

from muster import documents
from muster.client.calls import Call, Within, answered, change, change_once, etag, listed, pages, read

_ROUTES: Final = "/v1/notification-routes"
_ROUTE: Final = f"{_ROUTES}/{{route_id}}"
_NOTIFICATIONS: Final = f"{_ROUTE}/notifications"
_NOTIFICATION: Final = f"{_NOTIFICATIONS}/{{notification_id}}"


class NotificationCalls:
    @answered
    def create_notification_route(
        self, wanted: documents.NewNotificationRoute, *, dry_run: bool = False
    ) -> Call[documents.NotificationRouteWithSecret]:
        """Create a route. The answer has the secret that signs its webhooks, so it is never sent twice."""
        return change_once(_ROUTES, documents.NotificationRouteWithSecret, body=wanted, dry_run=dry_run)

    @listed
    def notification_routes(
        self, *, tenant_id: str | None = None, order: str | None = None, limit: int | None = None
    ) -> Call[documents.NotificationRoute]:
        """Every route that this key may know of: the operators' first, then by tenant and name."""
        query = {"tenant_id": tenant_id, "order": order, "limit": limit, "cursor": None}
        return pages(_ROUTES, documents.NotificationRoutePage, documents.NotificationRoute, query=query)

    @answered
    def notification_route(self, route_id: str) -> Call[documents.NotificationRoute]:
        """One route, without what is secret in its receiver."""
        return read(_ROUTE, documents.NotificationRoute, {"route_id": route_id})

    @answered
    def change_notification_route(
        self,
        route_id: str,
        wanted: documents.NotificationRouteChange,
        *,
        version: int | None = None,
        dry_run: bool = False,
    ) -> Call[documents.NotificationRouteWithSecret]:
        """Change a route, which turns it on. It is never sent twice. ``version``: only if it still is at that one."""
        return change_once(
            f"{_ROUTE}/change",
            documents.NotificationRouteWithSecret,
            {"route_id": route_id},
            body=wanted,
            dry_run=dry_run,
            if_match=etag(version),
        )

    @answered
    def delete_notification_route(
        self, route_id: str, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedNotificationRoute]:
        """Delete a route with its notifications."""
        return change(
            "DELETE",
            _ROUTE,
            documents.ChangedNotificationRoute,
            {"route_id": route_id},
            body=None,
            dry_run=dry_run,
            if_match=etag(version),
        )

    @answered
    def test_notification_route(
        self, route_id: str, *, dry_run: bool = False
    ) -> Call[documents.ChangedNotificationRoute]:
        """Send a test over a route."""
        path, values = f"{_ROUTE}/test", {"route_id": route_id}
        return change("POST", path, documents.ChangedNotificationRoute, values, body=None, dry_run=dry_run)

    @listed
    def notifications(
        self, route_id: str, *, state: str | None = None, limit: int | None = None, **within: Unpack[Within]
    ) -> Call[documents.NotificationSummary]:
        """Each notification that went out over a route, the newest first. ``state``: PENDING, DELIVERED or GIVEN_UP."""
        query = {"state": state, "limit": limit, **within, "cursor": None}
        values = {"route_id": route_id}
        return pages(_NOTIFICATIONS, documents.NotificationPage, documents.NotificationSummary, values, query=query)

    @answered
    def notification(self, route_id: str, notification_id: str) -> Call[documents.Notification]:
        """One notification with its text and tries."""
        return read(_NOTIFICATION, documents.Notification, _values(route_id, notification_id))

    @answered
    def resend_notification(
        self, route_id: str, notification_id: str, *, dry_run: bool = False
    ) -> Call[documents.ChangedNotification]:
        """Send a notification again, with the same id."""
        path, values = f"{_NOTIFICATION}/resend", _values(route_id, notification_id)
        return change("POST", path, documents.ChangedNotification, values, body=None, dry_run=dry_run)


def _values(route_id: str, notification_id: str) -> Mapping[str, str]:
    return {"route_id": route_id, "notification_id": notification_id}
