"""Positions of events and audit entries: one holder at a time, by a lock on the sequence's head."""

from typing import Literal

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from muster.db.models import AuditEntry, Event, SequenceHead

SequenceName = Literal["audit", "events"]


def lock_head(session: Session, name: SequenceName) -> SequenceHead | None:
    """Return the head, locked until the transaction ends; None while another process holds it."""
    return session.scalars(
        select(SequenceHead).where(SequenceHead.name == name).with_for_update(skip_locked=True)
    ).one_or_none()


def number_events(session: Session, *, after: int, batch: int) -> int:
    """Give the positions from ``after + 1`` on to committed events, in the order of their insertion."""
    waiting = (
        select(Event.id, func.row_number().over(order_by=Event.serial).label("rank"))
        .where(Event.position.is_(None))
        .order_by(Event.serial)
        .limit(batch)
        .subquery("waiting")
    )
    statement = update(Event).where(Event.id == waiting.c.id).values(position=after + waiting.c.rank)
    numbered = session.execute(statement.returning(Event.position).execution_options(synchronize_session=False))
    return len(numbered.all())


def unsealed_entries(session: Session, *, batch: int) -> list[AuditEntry]:
    """Return committed audit entries without a position, in the order of their insertion."""
    statement = select(AuditEntry).where(AuditEntry.position.is_(None)).order_by(AuditEntry.serial).limit(batch)
    return list(session.scalars(statement))
