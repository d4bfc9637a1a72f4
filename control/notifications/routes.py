"""Routes: where events of the operators, or of one tenant, are sent. What is secret in a receiver is never returned."""

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, func, select

from control.core.paging import NameOrder, Part, SortKey, by_name
from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see, visible_rows
from control.notifications.sealing import SealedRoute
from control.policy.policies import active_policy
from muster.db.models import NotificationRoute, Tenant
from muster.db.queries.events import newest_position
from muster.domain.errors import ConflictError, NotFoundError, PreconditionFailedError, ValidationFailedError
from muster.domain.ids import RouteId, TenantId
from muster.domain.notifications.events import TEST_KIND, USUAL_OF_OPERATORS, USUAL_OF_TENANTS
from muster.domain.notifications.routes import (
    MailTarget,
    RouteKind,
    shown,
)
from muster.domain.policy.notifications import NotificationPolicy
from muster.domain.principals import Permission

CREATE: Final = declare_action("route.create")
REPLACE: Final = declare_action("route.replace")
DELETE: Final = declare_action("route.delete")
TEST: Final = declare_action("route.test")
READ: Final = declare_action("route.read")
SORTS: Final = by_name(
    (
        SortKey(func.coalesce(NotificationRoute.tenant_id, ""), lambda row: row.tenant_id or ""),
        SortKey(NotificationRoute.name, attrgetter("name")),
    ),
    SortKey(NotificationRoute.created_at, attrgetter("created_at"), datetime.fromisoformat),
    SortKey(NotificationRoute.id, attrgetter("id")),
)


class RouteRecord(msgspec.Struct, frozen=True):
    """A route without its secrets. ``target``: the receiver, of an address scheme and host alone."""

    id: RouteId
    tenant_id: TenantId | None
    name: str
    kind: str
    target: str
    kinds: list[str]
    least: str
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime
    num_failures: int
    paused_until: datetime | None
    off_reason: str | None


def create(unit: UnitOfWork, sealed: SealedRoute, *, reason: str | None = None) -> RouteRecord:
    """Store a new route. It takes the events from now on.

    Raises:
        ConflictError: its owner has one of that name, or has the most that it may have.
        ValidationFailedError: mail to a domain that the policy does not allow.
    """
    unit.principal.require(Permission.ROUTE_WRITE)
    policy = active_policy(unit.session).notifications
    _require_domains(sealed, policy)
    _require_tenant(unit, sealed.tenant_id)
    _take_turn(unit, sealed.tenant_id)
    names = unit.session.scalars(select(NotificationRoute.name).where(*_of_owner(sealed.tenant_id))).all()
    if sealed.definition.name in names:
        message = f"there is a route {sealed.definition.name} already"
        raise ConflictError(message, suggestion="Change it, or choose another name.")
    if len(names) >= policy.most_routes:
        message = f"there are {len(names)} routes; the policy allows {policy.most_routes} (notifications.most_routes)"
        raise ConflictError(message, suggestion="Delete one first.")
    row = NotificationRoute(
        id=sealed.id,
        tenant_id=sealed.tenant_id,
        created_at=unit.now,
        created_by=unit.principal.name,
        from_position=newest_position(unit.session),
        updated_at=unit.now,
        **_stored(sealed),
    )
    unit.session.add(row)
    return _changed(unit, row, "created", "route.create", reason)


def _take_turn(unit: UnitOfWork, tenant_id: TenantId | None) -> None:
    """Wait until no other change of this owner's routes is open: each sees the names of the ones before."""
    unit.session.execute(select(func.pg_advisory_xact_lock(func.hashtext(f"routes of {tenant_id}"))))


def _of_owner(tenant_id: TenantId | None) -> tuple[ColumnElement[bool], ...]:
    return NotificationRoute.tenant_id.is_not_distinct_from(tenant_id), NotificationRoute.deleted_at.is_(None)


def _require_tenant(unit: UnitOfWork, tenant_id: TenantId | None) -> None:
    """Keep the tenant until the commit. Raises ``ValidationFailedError``: there is none with that id."""
    if tenant_id is not None and unit.session.get(Tenant, tenant_id, with_for_update={"key_share": True}) is None:
        raise ValidationFailedError.at("/tenant_id", "unknown_tenant", "there is no such tenant")


def _stored(sealed: SealedRoute) -> dict[str, Any]:
    definition, envelope = sealed.definition, sealed.envelope
    usual = USUAL_OF_OPERATORS if sealed.tenant_id is None else USUAL_OF_TENANTS
    return {
        "name": definition.name,
        "kind": RouteKind(definition.target.kind),
        "target": shown(definition.target),
        "kinds": list(definition.kinds or usual),
        "least": definition.least,
        "version": sealed.version,
        "key_id": envelope.wrapped.key_id,
        "wrapped_key": envelope.wrapped.content,
        "nonce": envelope.nonce,
        "sealed": envelope.sealed,
        "sealed_at_version": sealed.version,
    }


def _require_domains(sealed: SealedRoute, policy: NotificationPolicy) -> None:
    target = sealed.definition.target
    place = policy.refused_address(sealed.tenant_id, target.to) if isinstance(target, MailTarget) else None
    if place is not None:
        accepted = f"the policy allows mail to: {', '.join(policy.mail_domains)}"
        raise ValidationFailedError.at(f"/target/to/{place}", "refused_domain", accepted)


def replace(unit: UnitOfWork, sealed: SealedRoute, *, expected_version: int | None = None) -> RouteRecord:
    """Store a route's next version, which is on, whatever it was.

    Raises:
        NotFoundError: there is no such route, or it is another tenant's.
        ConflictError: another request changed it at the same time, or its new name is taken.
        PreconditionFailedError: it is not at ``expected_version``.
    """
    unit.principal.require(Permission.ROUTE_WRITE)
    _require_domains(sealed, active_policy(unit.session).notifications)
    _take_turn(unit, sealed.tenant_id)
    row = _locked(unit, sealed.id, expected_version)
    if row.version + 1 != sealed.version:
        words = f"the route {row.name} was changed by another request at the same time"
        raise ConflictError(words, suggestion="Read it again, and repeat the change if it is still needed.")
    taken = select(NotificationRoute.id).where(
        *_of_owner(row.tenant_id), NotificationRoute.name == sealed.definition.name, NotificationRoute.id != row.id
    )
    if unit.session.scalar(taken) is not None:
        raise ConflictError(f"there is a route {sealed.definition.name} already", suggestion="Choose another name.")
    for name, value in _stored(sealed).items():
        setattr(row, name, value)
    row.updated_at, row.num_failures, row.paused_until, row.off_reason = unit.now, 0, None, None
    return _changed(unit, row, "changed", "route.replace", None)


def delete(unit: UnitOfWork, route_id: RouteId, *, expected_version: int | None = None) -> RouteRecord:
    """Delete a route; what is tried now may still arrive. Raises as ``replace``.

    Its rows are removed in batches (``control.system.retention``).
    """
    unit.principal.require(Permission.ROUTE_WRITE)
    row = _locked(unit, route_id, expected_version)
    row.deleted_at, row.off_reason = unit.now, "it is deleted"
    return _changed(unit, row, "deleted", "route.delete", None)


def test(unit: UnitOfWork, route_id: RouteId) -> RouteRecord:
    """Send a test over a route, as any event goes. Raises ``NotFoundError``, ``ConflictError``: it is off."""
    unit.principal.require(Permission.ROUTE_WRITE)
    row = _locked(unit, route_id, None)
    if row.off_reason is not None:
        raise ConflictError(
            f"the route {row.name} is off: {row.off_reason}", suggestion="Change it, which turns it on."
        )
    detail = {"name": row.name, "by": unit.principal.name}
    unit.emit(TEST_KIND, "route", row.id, tenant_id=row.tenant_id, payload=detail)
    unit.audit("route.test", "route", row.id, tenant_id=row.tenant_id, detail={"name": row.name})
    return record_of(row, RouteRecord)


def list_routes(unit: UnitOfWork, part: Part, *, tenant_id: TenantId | None = None) -> Sequence[RouteRecord]:
    """Return the routes that the reader may know, by owner and name unless ``part`` says otherwise."""
    unit.principal.require(Permission.ROUTE_READ)
    is_there = NotificationRoute.deleted_at.is_(None)
    query = select(NotificationRoute).where(is_there, visible_rows(unit.principal, NotificationRoute.tenant_id))
    if tenant_id is not None:
        query = query.where(NotificationRoute.tenant_id == tenant_id)
    return records_of(unit.session.scalars(part.of(query, SORTS[NameOrder.NAME])), RouteRecord)


def get(unit: UnitOfWork, route_id: RouteId) -> RouteRecord:
    """Raise ``NotFoundError`` for a missing route and for another owner's alike."""
    unit.principal.require(Permission.ROUTE_READ)
    row = unit.session.get(NotificationRoute, route_id)
    if row is None or row.deleted_at is not None or not may_see(unit.principal, row.tenant_id):
        raise NotFoundError
    return record_of(row, RouteRecord)


def _locked(unit: UnitOfWork, route_id: RouteId, expected_version: int | None) -> NotificationRoute:
    row = unit.session.get(NotificationRoute, route_id, with_for_update=True)
    if row is None or row.deleted_at is not None or not may_see(unit.principal, row.tenant_id):
        raise NotFoundError
    if expected_version is not None and row.version != expected_version:
        raise PreconditionFailedError(current_version=row.version)
    return row


def _changed(unit: UnitOfWork, row: NotificationRoute, what: str, action: str, reason: str | None) -> RouteRecord:
    detail = {"name": row.name, "kind": str(row.kind), "target": row.target, "kinds": row.kinds, "version": row.version}
    unit.emit(f"route.{what}", "route", row.id, tenant_id=row.tenant_id, payload=detail)
    unit.audit(action, "route", row.id, tenant_id=row.tenant_id, reason=reason, detail=detail)
    unit.session.flush()
    return record_of(row, RouteRecord)
