"""Tenants, quotas, keys and persons, to read: one listing of each for the API and the console."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, and_, not_, or_, select

from control.core.paging import NameOrder, Part, SortKey, TimeOrder, by_name, by_time
from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork
from control.core.visibility import may_see, visible_rows
from muster.db.models import ApiKey, Person, Tenant
from muster.domain.errors import NotFoundError
from muster.domain.ids import KeyId, NodeId, TenantId
from muster.domain.principals import Permission, Role

MOST: Final = 1000


class TenantRecord(msgspec.Struct, frozen=True):
    """One tenant. ``weight``: of its share of the GPUs that are not guaranteed, among the tenants of one parent.

    ``residency``: its own residency rule as stored; None: none.
    """

    id: TenantId
    name: str
    created_at: datetime
    parent_id: TenantId | None
    weight: float
    residency: Mapping[str, Any] | None


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


ALL: Final = Part(MOST)
"""All that the console shows."""
_NAME: Final = attrgetter("name")
_CREATED: Final = attrgetter("created_at")
_ID: Final = attrgetter("id")
TENANT_SORTS: Final = by_name(
    (SortKey(Tenant.name, _NAME),),
    SortKey(Tenant.created_at, _CREATED, datetime.fromisoformat),
    SortKey(Tenant.id, _ID),
)
PERSON_SORTS: Final = by_name(
    (SortKey(Person.name, _NAME),),
    SortKey(Person.created_at, _CREATED, datetime.fromisoformat),
    SortKey(Person.id, _ID),
)
KEY_SORTS: Final = by_time(SortKey(ApiKey.created_at, _CREATED, datetime.fromisoformat), SortKey(ApiKey.id, _ID))


@dataclass(frozen=True, slots=True)
class TenantFilter:
    """Conditions on a tenant; None sets no condition. ``name``: a part of it, in any case."""

    name: str | None = None
    parent_id: TenantId | None = None


@dataclass(frozen=True, slots=True)
class AccessFilter:
    """Conditions on a key or a person; None and empty set no condition.

    ``name``: a part of it, in any case. ``is_active``: a key that is neither revoked nor expired, and a person that is
    not disabled; or not.
    """

    name: str | None = None
    roles: Sequence[Role] = ()
    tenant_id: TenantId | None = None
    is_active: bool | None = None


ANY_TENANT: Final = TenantFilter()
ANY_ACCESS: Final = AccessFilter()


def list_tenants(unit: UnitOfWork, wanted: TenantFilter = ANY_TENANT, part: Part = ALL) -> Sequence[TenantRecord]:
    """Return tenants by name unless ``part`` says otherwise; a tenant sees itself."""
    unit.principal.require(Permission.TENANT_READ)
    query = select(Tenant).where(visible_rows(unit.principal, Tenant.id))
    if wanted.name is not None:
        query = query.where(Tenant.name.icontains(wanted.name, autoescape=True))
    if wanted.parent_id is not None:
        query = query.where(Tenant.parent_id == wanted.parent_id)
    return records_of(unit.session.scalars(part.of(query, TENANT_SORTS[NameOrder.NAME])), TenantRecord)


def list_keys(unit: UnitOfWork, wanted: AccessFilter = ANY_ACCESS, part: Part = ALL) -> Sequence[KeyRecord]:
    """Return the keys that the reader may see, the newest first unless ``part`` says otherwise."""
    unit.principal.require(Permission.KEY_READ)
    query = select(ApiKey).where(visible_rows(unit.principal, ApiKey.tenant_id), *_conditions(ApiKey, wanted))
    if wanted.is_active is not None:
        is_active = and_(ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > unit.now))
        query = query.where(is_active if wanted.is_active else not_(is_active))
    return records_of(unit.session.scalars(part.of(query, KEY_SORTS[TimeOrder.NEWEST])), KeyRecord)


def get_key(unit: UnitOfWork, key_id: KeyId) -> KeyRecord:
    """Raise ``NotFoundError`` for a missing key and for another tenant's alike."""
    unit.principal.require(Permission.KEY_READ)
    key = unit.session.get(ApiKey, key_id)
    if key is None or not may_see(unit.principal, key.tenant_id):
        raise NotFoundError
    return record_of(key, KeyRecord)


def list_persons(unit: UnitOfWork, wanted: AccessFilter = ANY_ACCESS, part: Part = ALL) -> Sequence[PersonRecord]:
    """Return the persons that the reader may see, by name unless ``part`` says otherwise."""
    unit.principal.require(Permission.KEY_READ)
    query = select(Person).where(visible_rows(unit.principal, Person.tenant_id), *_conditions(Person, wanted))
    if wanted.is_active is not None:
        query = query.where(Person.disabled_at.is_(None) if wanted.is_active else Person.disabled_at.is_not(None))
    return records_of(unit.session.scalars(part.of(query, PERSON_SORTS[NameOrder.NAME])), PersonRecord)


def _conditions(kind: type[ApiKey] | type[Person], wanted: AccessFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.name is not None:
        yield kind.name.icontains(wanted.name, autoescape=True)
    if wanted.roles:
        yield kind.role.in_(wanted.roles)
    if wanted.tenant_id is not None:
        yield kind.tenant_id == wanted.tenant_id
