"""The outbox as its relay sees it."""

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from muster.db.models import OutboxMessage

_PENDING = (OutboxMessage.sent_at.is_(None), OutboxMessage.dead_at.is_(None))


def claim_due(session: Session, *, now: datetime, batch: int) -> list[OutboxMessage]:
    """Return due messages, oldest first, locked; messages that another relay holds are skipped."""
    statement = (
        select(OutboxMessage)
        .where(*_PENDING, OutboxMessage.next_try_at <= now)
        .order_by(OutboxMessage.id)
        .limit(batch)
        .with_for_update(skip_locked=True)
    )
    return list(session.scalars(statement))


def by_ids(session: Session, ids: list[int]) -> list[OutboxMessage]:
    """Return these messages, locked in the order of their ids."""
    statement = select(OutboxMessage).where(OutboxMessage.id.in_(ids)).order_by(OutboxMessage.id).with_for_update()
    return list(session.scalars(statement))


def num_dead(session: Session) -> int:
    return session.scalars(select(func.count()).where(OutboxMessage.dead_at.is_not(None))).one()
