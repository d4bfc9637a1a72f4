"""Tenants, quotas, keys and persons, to read: one listing of each for the API and the console."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy import select

from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork
from control.core.visibility import may_see, visible_rows
from muster.db.models import ApiKey, Person, Tenant
from muster.domain.errors import NotFoundError
from muster.domain.ids import KeyId, NodeId, TenantId
from muster.domain.principals import Permission, Role

MOST: Final = 1000


class TenantRecord(msgspec.Struct, frozen=True):
    """One tenant. ``weight``: of its share of the GPUs that are not guaranteed, among the tenants of one parent."""

    id: TenantId
    name: str
    created_at: datetime
    parent_id: TenantId | None
    weight: float


class QuotaRecord(msgspec.Struct, frozen=True):
    """The limits of a tenant, with all below it, in a tier. ``None``: there is no such limit."""

    tenant_id: TenantId
    tier: str
    guaranteed_gpus: int
    borrowable_gpus: int | None
    ceiling_gpus: int | None
    updated_at: datetime


class KeyRecord(msgspec.Struct, frozen=True):
    """An API key without its secret. ``prefix``: the public beginning of its token."""

    id: KeyId
    prefix: str
    name: str
    role: Role
    tenant_id: TenantId | None
    node_id: NodeId | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    version: int


class PersonRecord(msgspec.Struct, frozen=True):
    """A person without the password's hash."""

    id: str
    name: str
    role: Role
    tenant_id: TenantId | None
    created_at: datetime
    disabled_at: datetime | None


def list_tenants(unit: UnitOfWork) -> Sequence[TenantRecord]:
    """Return every tenant by name; a tenant sees itself."""
    unit.principal.require(Permission.TENANT_READ)
    query = select(Tenant).where(visible_rows(unit.principal, Tenant.id)).order_by(Tenant.name).limit(MOST)
    return records_of(unit.session.scalars(query), TenantRecord)


def list_keys(unit: UnitOfWork) -> Sequence[KeyRecord]:
    """Return the keys that the reader may see, the newest first."""
    unit.principal.require(Permission.KEY_READ)
    query = select(ApiKey).where(visible_rows(unit.principal, ApiKey.tenant_id))
    query = query.order_by(ApiKey.created_at.desc(), ApiKey.id.desc()).limit(MOST)
    return records_of(unit.session.scalars(query), KeyRecord)


def get_key(unit: UnitOfWork, key_id: KeyId) -> KeyRecord:
    """Raise ``NotFoundError`` for a missing key and for another tenant's alike."""
    unit.principal.require(Permission.KEY_READ)
    key = unit.session.get(ApiKey, key_id)
    if key is None or not may_see(unit.principal, key.tenant_id):
        raise NotFoundError
    return record_of(key, KeyRecord)


def list_persons(unit: UnitOfWork) -> Sequence[PersonRecord]:
    """Return the persons that the reader may see, by name."""
    unit.principal.require(Permission.KEY_READ)
    query = select(Person).where(visible_rows(unit.principal, Person.tenant_id)).order_by(Person.name).limit(MOST)
    return records_of(unit.session.scalars(query), PersonRecord)
