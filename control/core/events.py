"""Queries of events: by the page from the newest on, and after a position in the order of positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import select

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time, number_in
from control.core.records import records_of
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.core.visibility import visible_rows
from muster.db.models import Event
from muster.db.queries import events as queries
from muster.domain.errors import CursorExpiredError
from muster.domain.ids import EventId, TenantId
from muster.domain.principals import Permission, Principal

READ: Final = declare_action("event.read")
SORTS: Final = by_time(SortKey(Event.position, attrgetter("position"), number_in))


class EventRecord(msgspec.Struct, frozen=True):
    """A dated fact. ``position``: its place in the order of reading; ``None`` until the sequencer has given it."""

    id: EventId
    serial: int
    position: int | None
    at: datetime
    kind: str
    subject_type: str
    subject_id: str
    tenant_id: TenantId | None
    payload: dict[str, Any]
    caused_by: str | None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Conditions on an event: the beginning of its kind, such as ``gpu.``, its subject's id, its tenant and time.

    None sets no condition.
    """

    kind: str | None = None
    subject_id: str | None = None
    tenant_id: TenantId | None = None
    span: Span = ALWAYS


def list_events(unit: UnitOfWork, wanted: EventFilter, part: Part) -> Sequence[EventRecord]:
    """Return events, the newest first unless ``part`` says otherwise; a tenant reads its own."""
    unit.principal.require(Permission.EVENT_READ)
    query = select(Event).where(Event.position.is_not(None), visible_rows(unit.principal, Event.tenant_id))
    query = query.where(*wanted.span.conditions(Event.at))
    if wanted.tenant_id is not None:
        query = query.where(Event.tenant_id == wanted.tenant_id)
    if wanted.kind is not None:
        query = query.where(Event.kind.startswith(wanted.kind, autoescape=True))
    if wanted.subject_id is not None:
        query = query.where(Event.subject_id == wanted.subject_id)
    return records_of(unit.session.scalars(part.of(query, SORTS[TimeOrder.NEWEST])), EventRecord)


def events_behind(
    units: UnitOfWorkFactory, principal: Principal, position: int, *, limit: int, refuses_gap: bool = False
) -> Sequence[EventRecord]:
    """Return the events after ``position`` in the order of positions; a tenant reads its own.

    Raises:
        CursorExpiredError: with ``refuses_gap``, where events after ``position`` are not kept any more.
    """
    principal.require(Permission.EVENT_READ)
    with units.read() as session:
        oldest = queries.oldest_position(session) if refuses_gap else None
        if oldest is not None and 0 < position < oldest - 1:
            raise CursorExpiredError(oldest_position=oldest)
        is_visible = visible_rows(principal, Event.tenant_id)
        return records_of(queries.events_after(session, position, is_visible, limit=limit), EventRecord)


def events_about(unit: UnitOfWork, subject_id: str, position: int, *, limit: int) -> Sequence[EventRecord]:
    """Return events after ``position`` about a subject that the caller has found visible."""
    unit.principal.require(Permission.EVENT_READ)
    is_about = Event.subject_id == subject_id
    return records_of(queries.events_after(unit.session, position, is_about, limit=limit), EventRecord)


def newest_position(units: UnitOfWorkFactory) -> int:
    """Return the last assigned position; 0 before the first."""
    with units.read() as session:
        return queries.newest_position(session)
