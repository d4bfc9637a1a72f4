"""Events as consumers read them: by position, each with its own cursor."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from muster.db.models import ConsumerCursor, Event, SequenceHead


def events_after(session: Session, position: int, *conditions: ColumnElement[bool], limit: int) -> Sequence[Event]:
    """Return at most ``limit`` events above ``position`` for which ``conditions`` hold, in their order."""
    statement = select(Event).where(Event.position > position, *conditions).order_by(Event.position).limit(limit)
    return session.scalars(statement).all()


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
