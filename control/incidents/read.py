"""Incidents, to read: one listing for the API and the console."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import and_, or_, select

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time
from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from muster.db.models import Incident
from muster.domain.errors import NotFoundError
from muster.domain.evidence.incidents import CLOSED_BY_RULE, IncidentKind, IncidentState, to_do
from muster.domain.principals import Permission

READ: Final = declare_action("incident.read")
SORTS: Final = by_time(SortKey(Incident.id, attrgetter("id")))


OF_GPUS_SQL: Final = """
    COALESCE((
        SELECT json_agg(to_json(i) ORDER BY i.id DESC) FROM incidents AS i
        WHERE i.closed_at IS NULL AND (
            i.subject_id IN (%s) OR (i.kind = 'breaker_open' AND jsonb_exists_any(i.payload -> 'gpus', ARRAY(%s)))
            OR (i.kind = 'node_lost' AND jsonb_exists(i.payload -> 'node_ids', %s))
        )
    ), '[]')
"""
"""The open incidents about any subject of the first subquery, about a breaker that holds back a GPU of the second, or
about a domain whose nodes are lost together with the node of the third.

Pages and documents of one place show these of the list. A JSON query has them in its own statement.
"""


class IncidentRecord(msgspec.Struct, frozen=True):
    """One incident. ``payload``: facts of its kind. ``closed_at``: ``None`` while it is open."""

    id: str
    kind: str
    subject_type: str
    subject_id: str
    summary: str
    payload: dict[str, Any]
    opened_at: datetime
    closed_at: datetime | None
    closed_by: str | None
    close_reason: str | None

    @property
    def to_do(self) -> str | None:
        """What a person does about it; None once it is closed."""
        return to_do(self.kind, self.payload) if self.closed_at is None else None

    @property
    def closes(self) -> str | None:
        """How it closes, if no person may close it by hand; None once it is closed."""
        return CLOSED_BY_RULE.get(self.kind) if self.closed_at is None else None


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Conditions on an incident; None and empty set no condition. ``span``: in which it was opened."""

    state: IncidentState | None = None
    kinds: Sequence[IncidentKind] = ()
    subject_id: str | None = None
    span: Span = ALWAYS


def list_incidents(unit: UnitOfWork, wanted: IncidentFilter, part: Part) -> Sequence[IncidentRecord]:
    """Return incidents, the newest first unless ``part`` says otherwise."""
    unit.principal.require(Permission.INCIDENT_READ)
    query = select(Incident).where(*wanted.span.conditions(Incident.opened_at))
    state, subject_id = wanted.state, wanted.subject_id
    if state is not None:
        query = query.where(
            Incident.closed_at.is_(None) if state is IncidentState.OPEN else Incident.closed_at.is_not(None)
        )
    if wanted.kinds:
        query = query.where(Incident.kind.in_(wanted.kinds))
    if subject_id is not None:
        is_lost = and_(Incident.kind == IncidentKind.NODE_LOST, Incident.payload["node_ids"].has_key(subject_id))
        query = query.where(or_(Incident.subject_id == subject_id, is_lost))
    return records_of(unit.session.scalars(part.of(query, SORTS[TimeOrder.NEWEST])), IncidentRecord)


def get(unit: UnitOfWork, incident_id: str) -> IncidentRecord:
    """Raise ``NotFoundError`` if there is no such incident."""
    unit.principal.require(Permission.INCIDENT_READ)
    found = unit.session.get(Incident, incident_id)
    if found is None:
        raise NotFoundError
    return record_of(found, IncidentRecord)
