"""Versions of a document: one is active, each stays with its author and reason, and none ever changes."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from control.core.paging import Part, Sort, SortKey, Span, TimeOrder, by_time, number_in
from control.core.records import records_of
from control.core.unit_of_work import UnitOfWork
from muster.db.models import DocumentVersion

V = TypeVar("V", bound=DocumentVersion)


class VersionRecord(msgspec.Struct, frozen=True):
    """A version of a document as it was stored."""

    version: int
    is_active: bool
    created_at: datetime
    created_by: str
    reason: str
    document: dict[str, Any]


def orders_of(kind: type[DocumentVersion]) -> Mapping[TimeOrder, Sort]:
    """Return the orders of a list of versions."""
    return by_time(SortKey(kind.version, attrgetter("version"), number_in))


def hold_versions(session: Session, kind: type[DocumentVersion]) -> None:
    """Prevent every other change of the active version until this transaction ends. Rows stay free."""
    session.execute(text(f"LOCK TABLE {kind.__tablename__} IN SHARE ROW EXCLUSIVE MODE"))


def active_version(session: Session, kind: type[V]) -> V | None:
    """Return the active version; None: none was ever stored."""
    return session.scalar(select(kind).where(kind.is_active))


def store_version(unit: UnitOfWork, kind: type[V], document: dict[str, Any], *, reason: str) -> V:
    """Make ``document`` the active version, by this principal. The caller holds the versions."""
    for row in unit.session.scalars(select(kind).where(kind.is_active)):
        row.is_active = False
    unit.session.flush()
    row = kind(document=document, is_active=True, created_at=unit.now, created_by=unit.principal.name, reason=reason)
    unit.session.add(row)
    unit.session.flush()
    return row


def versions_in(unit: UnitOfWork, kind: type[DocumentVersion], part: Part, span: Span) -> Sequence[VersionRecord]:
    """Return the versions of ``span``, the newest first unless ``part`` says otherwise."""
    query = select(kind).where(*span.conditions(kind.created_at))
    return records_of(unit.session.scalars(part.of(query, orders_of(kind)[TimeOrder.NEWEST])), VersionRecord)
