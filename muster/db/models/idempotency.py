"""Idempotency keys: one key of one principal never makes two (I12)."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base


class IdempotencyKey(Base):
    """Written in the unit of work that it guards. ``status`` and ``body`` are the answer, given again word by word."""

    __tablename__ = "idempotency_keys"

    principal_scope: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    method_path: Mapped[str]
    body_sha256: Mapped[bytes]
    status: Mapped[int | None] = mapped_column(default=None)
    body: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    etag: Mapped[str | None] = mapped_column(default=None)
    location: Mapped[str | None] = mapped_column(default=None)
    created_at: Mapped[datetime] = mapped_column(index=True)
