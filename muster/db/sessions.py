"""A session that remembers whether anything changed the database's state through it."""

from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session

_CHANGED: Final = "muster.is_changed"


class TrackedSession(Session):
    """A ``Session`` that notes flushes and INSERT, UPDATE, DELETE statements.

    Raw text is not read: a caller that sends it calls ``note_change``.
    """


def note_change(session: Session) -> None:
    """Raw text is about to change state."""
    session.info[_CHANGED] = True


def has_changed_state(session: TrackedSession) -> bool:
    return bool(session.info.get(_CHANGED, False))


@event.listens_for(TrackedSession, "before_flush")
def _note_flush(session: Session, _context: Any, _instances: Any) -> None:
    if session.new or session.deleted or any(session.is_modified(instance) for instance in session.dirty):
        note_change(session)


@event.listens_for(TrackedSession, "do_orm_execute")
def _note_statement(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        note_change(state.session)
