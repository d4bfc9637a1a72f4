"""Events as consumers read them: by position, each with its own cursor."""

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from muster.db.models import ConsumerCursor, Event, SequenceHead
from muster.domain.ids import TenantId


def events_after(
    session: Session, position: int, *, limit: int, tenant_id: TenantId | None = None, subject_id: str | None = None
) -> list[Event]:
    """Return at most ``limit`` events above ``position`` in their order, for one tenant or one subject if given."""
    statement = select(Event).where(Event.position > position).order_by(Event.position).limit(limit)
    if tenant_id is not None:
        statement = statement.where(Event.tenant_id == tenant_id)
    if subject_id is not None:
        statement = statement.where(Event.subject_id == subject_id)
    return list(session.scalars(statement))


def newest_position(session: Session) -> int:
    """Return the last assigned position; 0 before the first."""
    return session.scalars(select(SequenceHead.position).where(SequenceHead.name == "events")).one()


def oldest_position(session: Session) -> int | None:
    """Return the smallest position still kept; None when no event is."""
    return session.scalar(select(func.min(Event.position)))


def cursor_of(session: Session, consumer: str) -> int:
    """Return the position to which ``consumer`` has read; 0 for a new one."""
    return session.scalar(select(ConsumerCursor.position).where(ConsumerCursor.name == consumer)) or 0


def move_cursor(session: Session, consumer: str, position: int) -> None:
    """Remember that ``consumer`` has applied everything up to ``position``. Never moves back."""
    fresh = insert(ConsumerCursor).values(name=consumer, position=position)
    session.execute(
        fresh.on_conflict_do_update(
            index_elements=[ConsumerCursor.name],
            set_={"position": func.greatest(ConsumerCursor.position, fresh.excluded.position)},
        )
    )
