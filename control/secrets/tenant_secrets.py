"""Secrets as their tenants use them: set, list, rotate, delete. No use case returns a value.

A value is encrypted before the transaction that stores it, since its key may be kept by a service.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final

import msgspec
from sqlalchemy import delete as deletion
from sqlalchemy import select

from control.core.paging import NameOrder, Part, SortKey, by_name
from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.core.visibility import may_see, visible_rows
from control.secrets.envelopes import Envelope, Place, seal
from control.secrets.key_wrapping import KeyWrapper
from muster.db.models import Secret, SecretVersion, Tenant
from muster.domain.errors import ConflictError, NotFoundError, PreconditionFailedError, ValidationFailedError
from muster.domain.ids import SecretId, TenantId
from muster.domain.principals import Permission, Principal
from muster.identity import new_id

CREATE: Final = declare_action("secret.create")
ROTATE: Final = declare_action("secret.rotate")
DELETE: Final = declare_action("secret.delete")
READ: Final = declare_action("secret.list")

MOST_BYTES: Final = 64 << 10
MOST_OF_A_TENANT: Final = 1_000


class SecretRecord(msgspec.Struct, frozen=True):
    """One secret without its value. ``jobs``: names of the jobs that may use it; empty: all of its tenant."""

    id: SecretId
    tenant_id: TenantId
    name: str
    jobs: list[str]
    version: int
    created_at: datetime
    created_by: str
    rotated_at: datetime | None


@dataclass(frozen=True, slots=True)
class SealedValue:
    """A value that is ready to be stored at its place. ``jobs``: of a new secret."""

    place: Place
    envelope: Envelope
    jobs: tuple[str, ...] = ()


def seal_first(
    keys: KeyWrapper,
    principal: Principal,
    name: str,
    value: bytes,
    *,
    jobs: tuple[str, ...] = (),
    tenant_id: TenantId | None = None,
) -> SealedValue:
    """Return the first value of a new secret.

    Raises:
        ForbiddenError: the caller may not write secrets.
        ValidationFailedError: no tenant or another one's, or a value that is empty or too long.
        SecretKeyError: the keys cannot be used.
    """
    principal.require(Permission.SECRET_WRITE)
    require_size(value)
    place = Place(_tenant_of(principal, tenant_id), SecretId(new_id("secret")), name, 1)
    return SealedValue(place, seal(keys, place, value), jobs)


def seal_next(
    units: UnitOfWorkFactory, keys: KeyWrapper, principal: Principal, secret_id: SecretId, value: bytes
) -> SealedValue:
    """Return the next value of a secret. Raises as ``seal_first``, and ``NotFoundError``."""
    principal.require(Permission.SECRET_WRITE)
    require_size(value)
    with units.read() as session:
        row = session.get(Secret, secret_id)
    if row is None or not may_see(principal, row.tenant_id):
        raise NotFoundError
    place = Place(row.tenant_id, row.id, row.name, row.version + 1)
    return SealedValue(place, seal(keys, place, value))


def require_size(value: bytes) -> None:
    """Raise ``ValidationFailedError`` unless the value has 1 to ``MOST_BYTES`` bytes."""
    if not value:
        raise ValidationFailedError.at("/value", "empty", "a secret has at least one byte")
    if len(value) > MOST_BYTES:
        words = f"has {len(value):,} bytes; a secret may have {MOST_BYTES:,} (64 KiB): pass larger data as a dataset"
        raise ValidationFailedError.at("/value", "too_long", words)


def _tenant_of(principal: Principal, requested: TenantId | None) -> TenantId:
    own = principal.tenant_id
    if own is not None and requested not in {None, own}:
        raise ValidationFailedError.at("/tenant_id", "foreign_tenant", "a tenant keeps secrets of its own only")
    if own is None and requested is None:
        raise ValidationFailedError.at("/tenant_id", "missing", "an operator names the tenant whose secret it is")
    return own or TenantId(str(requested))


def create(unit: UnitOfWork, first: SealedValue, *, reason: str | None = None) -> SecretRecord:
    """Store a new secret. ``reason``: a person's, for the audit.

    Raises:
        ConflictError: the tenant has one of that name, or has the most that it may have.
        ValidationFailedError: there is no such tenant.
    """
    unit.principal.require(Permission.SECRET_WRITE)
    place = first.place
    if not may_see(unit.principal, place.tenant_id):
        raise NotFoundError
    # The lock orders two of one tenant, so that the later one finds the earlier one's name.
    if unit.session.get(Tenant, place.tenant_id, with_for_update={"key_share": True}) is None:
        raise ValidationFailedError.at("/tenant_id", "unknown_tenant", "there is no such tenant")
    names = unit.session.scalars(select(Secret.name).where(Secret.tenant_id == place.tenant_id)).all()
    if place.name in names:
        message = f"the tenant has a secret {place.name} already"
        raise ConflictError(message, suggestion="Give it a new value by `muster secret rotate`, or delete it first.")
    if len(names) >= MOST_OF_A_TENANT:
        raise ConflictError(f"a tenant has at most {MOST_OF_A_TENANT} secrets", suggestion="Delete one first.")
    row = Secret(
        id=place.secret_id,
        tenant_id=place.tenant_id,
        name=place.name,
        jobs=list(first.jobs),
        version=1,
        created_at=unit.now,
        created_by=unit.principal.name,
    )
    unit.session.add(row)
    unit.session.flush()
    unit.session.add(_version_of(unit, first))
    _leave_traces(unit, "secret.created", "secret.create", row, {"jobs": row.jobs, "version": 1}, reason)
    unit.session.flush()
    return record_of(row, SecretRecord)


def rotate(
    unit: UnitOfWork, following: SealedValue, *, expected_version: int | None = None, reason: str | None = None
) -> SecretRecord:
    """Store the next value. Attempts that were placed before keep to the value before it; older ones are removed.

    Raises:
        NotFoundError: there is no such secret, or it is another tenant's.
        ConflictError: it was rotated by another request at the same time.
        PreconditionFailedError: it is not at ``expected_version``.
    """
    unit.principal.require(Permission.SECRET_WRITE)
    row = _locked(unit, following.place.secret_id, expected_version)
    if row.version + 1 != following.place.version:
        words = f"the secret {row.name} was rotated by another request at the same time"
        raise ConflictError(words, suggestion="List the secrets, and rotate it again if that was not yours.")
    row.version, row.rotated_at = following.place.version, unit.now
    old = SecretVersion.secret_id == row.id, SecretVersion.version < row.version - 1
    unit.session.execute(deletion(SecretVersion).where(*old))
    unit.session.add(_version_of(unit, following))
    _leave_traces(unit, "secret.rotated", "secret.rotate", row, {"version": row.version}, reason)
    unit.session.flush()
    return record_of(row, SecretRecord)


def delete(
    unit: UnitOfWork, secret_id: SecretId, *, expected_version: int | None = None, reason: str | None = None
) -> SecretRecord:
    """Delete the secret with all its values: no host receives it from this commit on. Raises as ``rotate``."""
    unit.principal.require(Permission.SECRET_WRITE)
    row = _locked(unit, secret_id, expected_version)
    _leave_traces(unit, "secret.deleted", "secret.delete", row, {"version": row.version}, reason)
    unit.session.delete(row)
    unit.session.flush()
    return record_of(row, SecretRecord)


SORTS: Final = by_name(
    (SortKey(Secret.tenant_id, attrgetter("tenant_id")), SortKey(Secret.name, attrgetter("name"))),
    SortKey(Secret.created_at, attrgetter("created_at"), datetime.fromisoformat),
    SortKey(Secret.id, attrgetter("id")),
)


def list_secrets(
    unit: UnitOfWork, part: Part, *, tenant_id: TenantId | None = None, name: str | None = None
) -> Sequence[SecretRecord]:
    """Return the secrets that the reader may know, by tenant and name unless ``part`` says otherwise; never a value.

    ``name``: a part of it, in any case.
    """
    unit.principal.require(Permission.SECRET_READ)
    query = select(Secret).where(visible_rows(unit.principal, Secret.tenant_id))
    if tenant_id is not None:
        query = query.where(Secret.tenant_id == tenant_id)
    if name is not None:
        query = query.where(Secret.name.icontains(name, autoescape=True))
    return records_of(unit.session.scalars(part.of(query, SORTS[NameOrder.NAME])), SecretRecord)


def get_secret(unit: UnitOfWork, secret_id: SecretId) -> SecretRecord:
    """Raise ``NotFoundError`` for a missing secret and for another tenant's alike."""
    unit.principal.require(Permission.SECRET_READ)
    row = unit.session.get(Secret, secret_id)
    if row is None or not may_see(unit.principal, row.tenant_id):
        raise NotFoundError
    return record_of(row, SecretRecord)


def _locked(unit: UnitOfWork, secret_id: SecretId, expected_version: int | None) -> Secret:
    row = unit.session.get(Secret, secret_id, with_for_update=True)
    if row is None or not may_see(unit.principal, row.tenant_id):
        raise NotFoundError
    if expected_version is not None and row.version != expected_version:
        raise PreconditionFailedError(current_version=row.version)
    return row


def _version_of(unit: UnitOfWork, value: SealedValue) -> SecretVersion:
    envelope = value.envelope
    return SecretVersion(
        secret_id=value.place.secret_id,
        version=value.place.version,
        key_id=envelope.wrapped.key_id,
        wrapped_key=envelope.wrapped.content,
        nonce=envelope.nonce,
        sealed=envelope.sealed,
        num_bytes=envelope.num_bytes,
        created_at=unit.now,
        created_by=unit.principal.name,
    )


def _leave_traces(
    unit: UnitOfWork, kind: str, action: str, row: Secret, more: dict[str, object], reason: str | None
) -> None:
    detail = {"name": row.name, **more}
    unit.emit(kind, "secret", row.id, tenant_id=row.tenant_id, payload=detail)
    unit.audit(action, "secret", row.id, tenant_id=row.tenant_id, reason=reason, detail=detail)
