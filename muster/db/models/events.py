"""Events: dated facts, numbered without gaps after their commit; and how far each consumer has read."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import EventId, TenantId


class Event(Base):
    """``serial`` is the order of insertion, with gaps; ``position`` the order of reading, given by the sequencer.

    ``caused_by`` is the audit entry of the person or key whose unit of work this was.
    """

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_unsequenced", "serial", postgresql_where=text("position IS NULL")),
        Index("ix_events_subject", "subject_id", "position"),
        Index("ix_events_tenant", "tenant_id", "position"),
        Index("ix_events_rolled_back", "subject_id", postgresql_where=text("kind = 'attempt.rolled_back'")),
        Index("ix_events_resumed", "subject_id", postgresql_where=text("kind = 'attempt.resumed'")),
        Index("ix_events_at", "at", postgresql_where=text("position IS NOT NULL")),
    )

    id: Mapped[EventId] = mapped_column(primary_key=True)
    serial: Mapped[int] = mapped_column(BigInteger, Identity(always=True), init=False)
    position: Mapped[int | None] = mapped_column(BigInteger, unique=True, default=None)
    at: Mapped[datetime]
    kind: Mapped[str]
    subject_type: Mapped[str]
    subject_id: Mapped[str]
    tenant_id: Mapped[TenantId | None] = mapped_column(default=None)
    payload: Mapped[dict[str, Any]]
    caused_by: Mapped[str | None] = mapped_column(default=None)


class ConsumerCursor(Base):
    """Each consumer of events moves its cursor in the transaction that applies them, so it skips none."""

    __tablename__ = "consumer_cursors"

    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger)
