"""API keys: made once, stored as a hash, checked on each request, revoked at once."""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import func, or_, select

from control.core.json_query import JsonQuery
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.core.visibility import may_see
from control.tenants.login_keys import revoke_key
from control.tenants.read import KeyRecord
from muster.db.models import ApiKey, Node, Tenant
from muster.db.queries.keys import BY_PREFIX, USE_RESOLUTION, note_use
from muster.domain.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    PreconditionFailedError,
    UnauthenticatedError,
    ValidationFailedError,
)
from muster.domain.ids import KeyId, NodeId, TenantId
from muster.domain.principals import ROLE_PERMISSIONS, Permission, Principal, Role, system_principal
from muster.identity import new_id
from muster.tokens import Token, new_token, read_token

CREATE: Final = declare_action("key.create")
REVOKE: Final = declare_action("key.revoke")
READ: Final = declare_action("key.read")
NOTE_USE: Final = declare_action("key.note_use")

TENANT_ROLES: Final = frozenset({Role.TENANT_MEMBER, Role.TENANT_ADMIN})
_PRINCIPAL: Final = system_principal("authentication")
_ROLES_WITH: Final = {
    permission: [str(role) for role, held in ROLE_PERMISSIONS.items() if permission in held]
    for permission in Permission
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewKey:
    """``token`` is the secret: it is shown once and stored nowhere."""

    key: KeyRecord
    token: Token


@dataclass(frozen=True, slots=True)
class Answered(Generic[T]):
    """An answer with its reader; ``found`` None: there is no such thing. ``now``: the time of the query."""

    principal: Principal
    found: T | None
    now: datetime


def create(
    unit: UnitOfWork,
    *,
    name: str,
    role: Role,
    tenant_id: TenantId | None = None,
    node_id: NodeId | None = None,
    expires_at: datetime | None = None,
) -> NewKey:
    """Create a key with no more rights than its maker.

    Raises:
        ForbiddenError: the role holds what the maker does not.
        ValidationFailedError: a tenant's role without a tenant, an end in the past, no such tenant or node.
        ConflictError: a key of that name lives already in the same tenant, on the same node, or of the fleet.
    """
    unit.principal.require(Permission.KEY_WRITE)
    tenant_id = _tenant_of(unit.principal, role, tenant_id)
    _require_places(unit, role, tenant_id, node_id)
    if expires_at is not None and expires_at <= unit.now:
        raise ValidationFailedError.at("/expires_at", "in_the_past", "must lie in the future")
    _require_free(unit, name, tenant_id, node_id)
    return store_key(unit, name=name, role=role, tenant_id=tenant_id, node_id=node_id, expires_at=expires_at)


def store_key(
    unit: UnitOfWork,
    *,
    name: str,
    role: Role,
    tenant_id: TenantId | None,
    expires_at: datetime | None,
    node_id: NodeId | None = None,
    **more: object,
) -> NewKey:
    """Store a new key. The caller has checked that it may have one. ``more``: what the event and the audit add."""
    token = new_token()
    key = ApiKey(
        id=KeyId(new_id("key")),
        prefix=token.public,
        secret_sha256=token.digest,
        name=name,
        role=role,
        tenant_id=tenant_id,
        node_id=node_id,
        created_at=unit.now,
        expires_at=expires_at,
    )
    unit.session.add(key)
    detail = {"name": name, "role": role, "node_id": node_id, **more}
    unit.emit("key.created", "key", key.id, tenant_id=tenant_id, payload=detail)
    unit.audit("key.create", "key", key.id, tenant_id=tenant_id, detail=detail)
    unit.session.flush()
    return NewKey(record_of(key, KeyRecord), token)


def _tenant_of(principal: Principal, role: Role, requested: TenantId | None) -> TenantId | None:
    if principal.tenant_id is None:
        return requested
    is_more = role not in TENANT_ROLES or not ROLE_PERMISSIONS[role] <= ROLE_PERMISSIONS[principal.role]
    if is_more or requested not in {None, principal.tenant_id}:
        message = "a tenant makes keys for itself, with no more rights than the key that asks"
        raise ForbiddenError(message, permission=str(Permission.KEY_WRITE))
    return principal.tenant_id


def _require_places(unit: UnitOfWork, role: Role, tenant_id: TenantId | None, node_id: NodeId | None) -> None:
    if role is Role.SERVICE:
        raise ValidationFailedError.at("/role", "not_for_keys", "the control plane itself uses no key")
    if (role in TENANT_ROLES) != (tenant_id is not None):
        raise ValidationFailedError.at("/tenant_id", "by_role", "is needed for a tenant's role, and only for one")
    if (role is Role.NODE) != (node_id is not None):
        raise ValidationFailedError.at("/node_id", "by_role", "is needed for the role node, and only for it")
    if tenant_id is not None and unit.session.get(Tenant, tenant_id) is None:
        raise ValidationFailedError.at("/tenant_id", "unknown_tenant", "there is no such tenant")
    if node_id is not None and unit.session.get(Node, node_id) is None:
        raise ValidationFailedError.at("/node_id", "unknown_node", "there is no such node")


def free_name(unit: UnitOfWork, name: str, *, tenant_id: TenantId | None, node_id: NodeId | None) -> str:
    """Return ``name``, or with the first number appended that no live key of the same owner has."""
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(each for each in numbered if _living(unit, each, tenant_id, node_id) is None)


def _require_free(unit: UnitOfWork, name: str, tenant_id: TenantId | None, node_id: NodeId | None) -> None:
    """Check that no live key of the same owner has the name; keys older than this check stay as they are.

    It runs under a lock of the name, since no index can express it: a key's name becomes free when the key expires.
    """
    place = f"api key {tenant_id or node_id or 'of the fleet'} {name}"
    unit.session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(place, 0))))
    taken = _living(unit, name, tenant_id, node_id)
    if taken is not None:
        message = f"a live key is named {name} already: {taken.id}, which begins with mst_{taken.prefix}"
        raise ConflictError(message, suggestion="Choose another name, or revoke that key first.", key_id=taken.id)


def _living(unit: UnitOfWork, name: str, tenant_id: TenantId | None, node_id: NodeId | None) -> ApiKey | None:
    of_owner = ApiKey.tenant_id.is_not_distinct_from(tenant_id), ApiKey.node_id.is_not_distinct_from(node_id)
    lives = ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > unit.now)
    query = select(ApiKey).where(ApiKey.name == name, *of_owner, *lives)
    return unit.session.scalars(query.order_by(ApiKey.id.desc()).limit(1)).first()


def revoke(unit: UnitOfWork, key_id: KeyId, *, expected_version: int | None = None) -> KeyRecord:
    """Revoke the key: from this commit on it opens nothing, since there is no cache. Twice is the same as once.

    Keys of the command that were made through its sessions are revoked too.
    """
    unit.principal.require(Permission.KEY_WRITE)
    key = unit.session.get(ApiKey, key_id)
    if key is None or not may_see(unit.principal, key.tenant_id):
        raise NotFoundError
    if expected_version is not None and key.version != expected_version:
        raise PreconditionFailedError(current_version=key.version)
    if key.revoked_at is not None:
        return record_of(key, KeyRecord)
    revoke_key(unit, key)
    return record_of(key, KeyRecord)


def authenticate(units: UnitOfWorkFactory, text: str, *, address: str | None, request_id: str | None) -> Principal:
    """Return the principal of this token.

    Raises:
        UnauthenticatedError: the same words for malformed, unknown, wrong, expired and revoked.
    """
    return caller_with(units, text, address=address, request_id=request_id).principal()


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with a well-formed token and address. Its token is not checked yet."""

    units: UnitOfWorkFactory
    token: Token
    address: str | None
    request_id: str | None

    def principal(self) -> Principal:
        """Return the principal. Raises ``UnauthenticatedError``: unknown, wrong, expired, revoked."""
        rows = self.units.ask(BY_PREFIX, {"prefix": self.token.public})
        return self._admitted(rows, self.units.clock())

    def ask(self, permission: Permission, question: JsonQuery[T], parameters: Mapping[str, Any]) -> Answered[T]:
        """Return the principal, and the question's answer for a holder of ``permission``, in one round trip.

        ``now`` is among the question's parameters.

        Raises:
            UnauthenticatedError: as ``principal``.
            ForbiddenError: the role does not hold ``permission``.
        """
        now = self.units.clock()
        asked = {
            **parameters,
            "prefix": self.token.public,
            "digest": self.token.digest,
            "now": now,
            "roles": _ROLES_WITH[permission],
        }
        rows = self.units.ask(question.by_key, asked)
        principal = self._admitted(rows, now)
        principal.require(permission)
        return Answered(principal, question.read(rows[0].answer), now)

    def _admitted(self, rows: Sequence[Any], now: datetime) -> Principal:
        key = next(iter(rows), None)
        if key is None or not hmac.compare_digest(key.secret_sha256, self.token.digest):
            raise UnauthenticatedError
        if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
            raise UnauthenticatedError
        if key.last_used_at is None or now - key.last_used_at > USE_RESOLUTION:
            with self.units.begin(_PRINCIPAL, NOTE_USE, quiet=True) as unit:
                note_use(unit.session, key.id, now)
        return Principal(
            name=f"key:{key.name}",
            role=Role(key.role),
            key_id=key.id,
            tenant_id=key.tenant_id,
            node_id=key.node_id,
            address=self.address,
            request_id=self.request_id,
        )


def caller_with(units: UnitOfWorkFactory, text: str, *, address: str | None, request_id: str | None) -> Caller:
    """Return the caller. Raises ``UnauthenticatedError`` where it is no token at all. The database is not read."""
    token = read_token(text)
    if token is None:
        raise UnauthenticatedError
    return Caller(units, token, address, request_id)
