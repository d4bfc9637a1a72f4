"""Routes by which events leave the system, and the notifications that went out over them."""

from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Change, Changing, etag_of, version_in
from api.dependencies import dependencies_of
from api.lists import Cursor, OfTenant, PageRequest, Within, order_of
from api.notification_views import notification_view, route_view, summary_view
from api.permissions import requires
from api.reading import Limit, reading, require_id
from api.refusals import refusing_also
from api.secret_keys import keys_of
from control.core.paging import NameOrder
from control.notifications import read, routes, sealing
from control.notifications.routes import RouteRecord
from muster import documents
from muster.domain.errors import NotFoundError, SecretKeyError
from muster.domain.ids import NotificationId, RouteId, TenantId
from muster.domain.notifications.routes import NotificationState, RouteChange, RouteDefinition
from muster.domain.principals import Permission, Principal
from muster.domain.strict import Text

router = APIRouter(tags=["notifications"])
Reader = Annotated[Principal, requires(Permission.ROUTE_READ)]
Writer = Annotated[Principal, requires(Permission.ROUTE_WRITE)]
_NEEDS_KEYS: Final = [refusing_also(SecretKeyError)]


class NewRoute(RouteDefinition):
    tenant_id: Annotated[Text, Field(max_length=64)] | None = None


def _answer(route: RouteRecord) -> Answer:
    return Answer(route_view(route), 200, etag_of(route.version), f"/v1/notification-routes/{route.id}")


def _answer_with(change: Change, secret: str | None, route: RouteRecord, status: int = 200) -> Answer:
    """Return the answer with a new secret. A dry run makes none that signs, so it shows none."""
    answer = _answer(route)
    body = {**answer.body, "secret": None if change.is_dry_run else secret}
    return replace(answer, body=body, status=status)


@router.post(
    "/notification-routes",
    response_model=documents.NotificationRouteWithSecret,
    status_code=201,
    openapi_extra=described_by(NewRoute),
    dependencies=_NEEDS_KEYS,
)
def create_route(
    request: Request,
    principal: Writer,
    wanted: Annotated[NewRoute, json_body(NewRoute)],
    change: Changing,
) -> JSONResponse:
    """Create a route: it takes events from now on. No Idempotency-Key is kept, since its row would hold secrets."""
    owner = None if wanted.tenant_id is None else TenantId(require_id("tenant", wanted.tenant_id))
    definition = RouteDefinition.model_construct(
        **{name: getattr(wanted, name) for name in RouteDefinition.model_fields}
    )
    sealed = sealing.seal_new(keys_of(request), principal, definition, tenant_id=owner)
    return change.without_key().run(
        principal,
        routes.CREATE,
        lambda unit: routes.create(unit, sealed),
        lambda route: _answer_with(change, sealed.secret, route, 201),
    )


@router.get("/notification-routes", dependencies=[refusing_also(NotFoundError)])
def list_routes(
    request: Request,
    principal: Reader,
    tenant_id: OfTenant = None,
    order: Annotated[NameOrder, Query()] = NameOrder.NAME,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.NotificationRoutePage:
    """Return routes: the operators' first, then by tenant and name, unless ``order`` says otherwise."""
    owner = None if tenant_id is None else TenantId(require_id("tenant", tenant_id))
    return PageRequest(request, principal, routes.SORTS[order], cursor, limit).answer(
        routes.READ,
        {"path": "notification-routes", "tenant_id": tenant_id},
        lambda unit, part: routes.list_routes(unit, part, tenant_id=owner),
        route_view,
        newer={"order": order_of(order, NameOrder.NAME)},
    )


@router.get("/notification-routes/{route_id}", response_model=documents.NotificationRoute)
def show_route(route_id: str, request: Request, principal: Reader) -> Response:
    found_id, units = RouteId(require_id("route", route_id)), dependencies_of(request).units
    route = reading(units, principal, routes.READ, lambda unit: routes.get(unit, found_id))
    return JSONResponse(route_view(route), headers={"ETag": etag_of(route.version)})


@router.post(
    "/notification-routes/{route_id}/change",
    response_model=documents.NotificationRouteWithSecret,
    openapi_extra=described_by(RouteChange),
    dependencies=_NEEDS_KEYS,
)
def change_route(
    route_id: str,
    request: Request,
    principal: Writer,
    wanted: Annotated[RouteChange, json_body(RouteChange)],
    change: Changing,
    if_match: Annotated[str | None, Header()] = None,
) -> JSONResponse:
    """Change a route, which turns it on. What is not named stays. No Idempotency-Key is kept."""
    found_id, version = RouteId(require_id("route", route_id)), version_in(if_match, is_required=False)
    sealed = sealing.seal_next(dependencies_of(request).units, keys_of(request), principal, found_id, wanted)
    return change.without_key().run(
        principal,
        routes.REPLACE,
        lambda unit: routes.replace(unit, sealed, expected_version=version),
        lambda route: _answer_with(change, sealed.secret, route),
    )


@router.delete("/notification-routes/{route_id}", response_model=documents.ChangedNotificationRoute)
def delete_route(
    route_id: str,
    principal: Writer,
    change: Changing,
    if_match: Annotated[str | None, Header()] = None,
) -> JSONResponse:
    """Delete a route with its notifications. What is being sent may still arrive."""
    found_id, version = RouteId(require_id("route", route_id)), version_in(if_match, is_required=False)
    return change.run(
        principal, routes.DELETE, lambda unit: routes.delete(unit, found_id, expected_version=version), _answer
    )


@router.post("/notification-routes/{route_id}/test", response_model=documents.ChangedNotificationRoute)
def test_route(route_id: str, principal: Writer, change: Changing) -> JSONResponse:
    """Send a test over the route. It is a notification as any other: its list shows how it ended."""
    found_id = RouteId(require_id("route", route_id))
    return change.run(principal, routes.TEST, lambda unit: routes.test(unit, found_id), _answer)


@router.get("/notification-routes/{route_id}/notifications")
def list_notifications(
    route_id: str,
    request: Request,
    principal: Reader,
    within: Annotated[Within, Depends()],
    state: Annotated[NotificationState | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.NotificationPage:
    """Return what went out over a route, the newest first unless ``order`` says otherwise."""
    found_id = RouteId(require_id("route", route_id))
    return PageRequest(request, principal, read.SORTS[within.order], cursor, limit).answer(
        read.READ,
        {"path": "notifications", "route_id": route_id, "state": state},
        lambda unit, part: read.list_notifications(unit, found_id, part, state=state, span=within.span),
        summary_view,
        newer=within.conditions,
    )


@router.get("/notification-routes/{route_id}/notifications/{notification_id}")
def show_notification(
    route_id: str, notification_id: str, request: Request, principal: Reader
) -> documents.Notification:
    """Return one notification with its text and tries."""
    of_route, found_id = (
        RouteId(require_id("route", route_id)),
        NotificationId(require_id("notification", notification_id)),
    )
    units = dependencies_of(request).units
    return reading(
        units,
        principal,
        read.READ,
        lambda unit: notification_view(read.get(unit, of_route, found_id), read.tries_of(unit, found_id)),
    )


@router.post(
    "/notification-routes/{route_id}/notifications/{notification_id}/resend",
    response_model=documents.ChangedNotification,
)
def resend_notification(route_id: str, notification_id: str, principal: Writer, change: Changing) -> JSONResponse:
    """Send a notification again, with the same id."""
    of_route, found_id = (
        RouteId(require_id("route", route_id)),
        NotificationId(require_id("notification", notification_id)),
    )
    return change.run(
        principal,
        read.RESEND,
        lambda unit: read.resend(unit, of_route, found_id),
        lambda row: Answer(summary_view(row)),
    )
