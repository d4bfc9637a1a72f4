"""Events by the page, the newest first: for people, who begin with what just happened."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import visible_rows
from muster.db.models import Event
from muster.domain.principals import Permission

READ: Final = declare_action("event.read")


@dataclass(frozen=True, slots=True)
class EventFilter:
    """``kind``: its beginning, such as ``gpu.``; ``subject_id``: of what it is about. None asks nothing."""

    kind: str | None = None
    subject_id: str | None = None


def list_events(unit: UnitOfWork, wanted: EventFilter, *, before: int | None = None, limit: int) -> Sequence[Event]:
    """A tenant reads its own. ``before``: the position where the last page ended."""
    unit.principal.require(Permission.EVENT_READ)
    query = select(Event).where(Event.position.is_not(None), visible_rows(unit.principal, Event.tenant_id))
    query = query.order_by(Event.position.desc()).limit(limit)
    if wanted.kind is not None:
        query = query.where(Event.kind.startswith(wanted.kind, autoescape=True))
    if wanted.subject_id is not None:
        query = query.where(Event.subject_id == wanted.subject_id)
    if before is not None:
        query = query.where(Event.position < before)
    return unit.session.scalars(query).all()
