"""The outbox: messages of a unit of work, sent once it has committed; and Celery's deliveries, counted."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base


class OutboxMessage(Base):
    """Pending while neither ``sent_at`` nor ``dead_at`` is set; due from ``next_try_at`` on."""

    __tablename__ = "outbox"
    __table_args__ = (
        Index("ix_outbox_pending", "next_try_at", "id", postgresql_where=text("sent_at IS NULL AND dead_at IS NULL")),
        Index("ix_outbox_dead", "id", postgresql_where=text("dead_at IS NOT NULL")),
        Index("ix_outbox_over", text("LEAST(sent_at, dead_at)")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    topic: Mapped[str]
    key: Mapped[str]
    payload: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    next_try_at: Mapped[datetime]
    tries: Mapped[int] = mapped_column(default=0)
    sent_at: Mapped[datetime | None] = mapped_column(default=None)
    dead_at: Mapped[datetime | None] = mapped_column(default=None)
    last_error: Mapped[str | None] = mapped_column(default=None)
