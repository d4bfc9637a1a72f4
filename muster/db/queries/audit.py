"""Reads of the audit chain for its verification."""

from collections.abc import Iterator

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from muster.db.models import AuditEntry, SequenceHead

_STREAM_ROWS = 500


def sealed_entries(session: Session) -> Iterator[AuditEntry]:
    """Every sealed entry by position, streamed: the chain may be longer than memory."""
    statement = select(AuditEntry).where(AuditEntry.position.is_not(None)).order_by(AuditEntry.position)
    for page in session.scalars(statement, execution_options={"yield_per": _STREAM_ROWS}).partitions():
        yield from page
        for entry in page:
            session.expunge(entry)


def num_unsealed(session: Session) -> int:
    return session.scalars(select(func.count()).where(AuditEntry.position.is_(None))).one()


def seal_anchor(session: Session) -> tuple[int, bytes | None]:
    """Up to where the sealer has sealed, and the hash there."""
    head = session.scalars(select(SequenceHead).where(SequenceHead.name == "audit")).one()
    return head.position, head.hash
