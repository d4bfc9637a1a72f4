"""A route before it is stored: its receiver and signing secret in an envelope, which only a sender opens.

It is made before the transaction, since the key may be kept by a service. The signing secret is returned once, by the
request that makes it.
"""

import json
import os
from dataclasses import dataclass
from typing import Final

from pydantic import SecretStr, TypeAdapter

from control.core.unit_of_work import UnitOfWorkFactory
from control.core.visibility import may_see
from control.secrets.envelopes import Envelope, opened, place_of_route, seal
from control.secrets.key_wrapping import KeyWrapper, WrappedKey
from muster.db.models import NotificationRoute
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.ids import RouteId, TenantId
from muster.domain.notifications.routes import RouteChange, RouteDefinition, Target, WebhookTarget
from muster.domain.notifications.signatures import SECRET_BYTES, secret_of
from muster.domain.principals import Permission, Principal
from muster.identity import new_id

_TARGET: Final[TypeAdapter[Target]] = TypeAdapter(Target)


@dataclass(frozen=True, slots=True)
class Receiver:
    """What a route's envelope holds. ``secrets``: that sign webhooks, the newest first."""

    target: Target
    secrets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SealedRoute:
    """A route that is ready to be stored. ``secret``: the new signing secret, where there is one."""

    id: RouteId
    tenant_id: TenantId | None
    definition: RouteDefinition
    version: int
    envelope: Envelope
    secret: str | None


def receiver_of(keys: KeyWrapper, row: NotificationRoute) -> Receiver:
    """Return the receiver of a stored route. Raises ``SecretKeyError``."""
    envelope = Envelope(WrappedKey(row.key_id, row.wrapped_key), row.nonce, row.sealed, 0)
    content = json.loads(opened(keys, place_of_route(row.tenant_id, row.id, row.sealed_at_version), envelope))
    return Receiver(_TARGET.validate_python(content["target"], strict=False), tuple(content["secrets"]))


def seal_new(
    keys: KeyWrapper, principal: Principal, definition: RouteDefinition, *, tenant_id: TenantId | None = None
) -> SealedRoute:
    """Return a new route. ``tenant_id``: whose it is, for an operator; None: the operators'.

    Raises:
        ForbiddenError: the caller may not write routes.
        ValidationFailedError: another tenant's.
        SecretKeyError: the keys cannot be used.
    """
    principal.require(Permission.ROUTE_WRITE)
    if principal.tenant_id is not None and tenant_id not in {None, principal.tenant_id}:
        raise ValidationFailedError.at("/tenant_id", "foreign_tenant", "a tenant keeps routes of its own only")
    owner = principal.tenant_id or tenant_id
    return _sealed(keys, RouteId(new_id("route")), owner, definition, 1, ())


def seal_next(
    units: UnitOfWorkFactory,
    keys: KeyWrapper,
    principal: Principal,
    route_id: RouteId,
    change: RouteChange,
) -> SealedRoute:
    """Return a route's next version. A receiver may check by the secret before until there is another new one.

    Raises as ``seal_new``, and ``NotFoundError``.
    """
    principal.require(Permission.ROUTE_WRITE)
    with units.read() as session:
        row = session.get(NotificationRoute, route_id)
    if row is None or row.deleted_at is not None or not may_see(principal, row.tenant_id):
        raise NotFoundError
    # With a whole new receiver the former one is not opened: its key may be lost.
    is_new = change.target is not None and change.target.kind != "webhook"
    receiver = Receiver(change.target, ()) if is_new and change.target is not None else receiver_of(keys, row)
    definition = RouteDefinition(
        name=change.name or row.name,
        target=change.target or receiver.target,
        kinds=tuple(row.kinds) if change.kinds is None else change.kinds,
        least=change.least or row.least,
    )
    known = receiver.secrets if not change.new_secret else receiver.secrets[:1]
    return _sealed(keys, row.id, row.tenant_id, definition, row.version + 1, known, is_new_secret=change.new_secret)


def _sealed(
    keys: KeyWrapper,
    route_id: RouteId,
    tenant_id: TenantId | None,
    definition: RouteDefinition,
    version: int,
    known: tuple[str, ...],
    *,
    is_new_secret: bool = False,
) -> SealedRoute:
    is_signed = isinstance(definition.target, WebhookTarget)
    secret = secret_of(os.urandom(SECRET_BYTES)) if is_signed and (is_new_secret or not known) else None
    secrets = (secret, *known) if secret is not None else known
    content = json.dumps({"target": _plain(definition.target), "secrets": secrets if is_signed else ()})
    envelope = seal(keys, place_of_route(tenant_id, route_id, version), content.encode())
    return SealedRoute(route_id, tenant_id, definition, version, envelope, secret)


def _plain(target: Target) -> dict[str, object]:
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in target.model_dump().items()
    }
