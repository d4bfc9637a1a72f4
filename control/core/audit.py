"""Queries of audit entries: which principal changed what, from where and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, select

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time, number_in
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import visible_rows
from muster.db.models import AuditEntry
from muster.domain.ids import KeyId, TenantId
from muster.domain.principals import Permission, Role

READ: Final = declare_action("audit.read")
SORTS: Final = by_time(SortKey(AuditEntry.serial, attrgetter("entry.serial"), number_in))
_TENANT_ROLES: Final = (Role.TENANT_MEMBER, Role.TENANT_ADMIN)


class AuditRecord(msgspec.Struct, frozen=True):
    """One change: its actor, subject and reason. ``position`` and the hashes are ``None`` until the entry is sealed."""

    id: str
    serial: int
    position: int | None
    at: datetime
    actor: str
    actor_key_id: KeyId | None
    role: Role
    action: str
    subject_type: str
    subject_id: str
    tenant_id: TenantId | None
    reason: str | None
    address: str | None
    request_id: str | None
    detail: dict[str, Any]
    prev_hash: bytes | None
    hash: bytes | None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Conditions on an entry; None and empty set no condition.

    ``subject_id``, ``tenant_id``: of the changed subject. ``span``: in which it was changed.
    """

    actor: str | None = None
    actions: Sequence[str] = ()
    subject_id: str | None = None
    tenant_id: TenantId | None = None
    span: Span = ALWAYS


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """One entry. ``shows_origin``: whether the reader may know the address, key and request that it came from."""

    entry: AuditRecord
    shows_origin: bool


def list_entries(unit: UnitOfWork, wanted: AuditFilter, part: Part) -> Sequence[ReadEntry]:
    """Return entries, the newest first unless ``part`` says otherwise.

    A tenant reads changes of its own subjects by any actor, but the origin only of its own people's.
    """
    unit.principal.require(Permission.AUDIT_READ)
    is_visible = visible_rows(unit.principal, AuditEntry.tenant_id)
    query = part.of(select(AuditEntry).where(is_visible, *_conditions(wanted)), SORTS[TimeOrder.NEWEST])
    sees_all = unit.principal.sees_all_tenants
    return [
        ReadEntry(record_of(entry, AuditRecord), sees_all or entry.role in _TENANT_ROLES)
        for entry in unit.session.scalars(query)
    ]


def _conditions(wanted: AuditFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.actor is not None:
        yield AuditEntry.actor == wanted.actor
    if wanted.actions:
        yield AuditEntry.action.in_(wanted.actions)
    if wanted.subject_id is not None:
        yield AuditEntry.subject_id == wanted.subject_id
    if wanted.tenant_id is not None:
        yield AuditEntry.tenant_id == wanted.tenant_id
    yield from wanted.span.conditions(AuditEntry.at)
