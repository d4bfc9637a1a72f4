"""Money: versions of the rate cards."""

from datetime import datetime
from typing import Any

from sqlalchemy import Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base


class RateVersion(Base):
    """All rate cards as they were set at once, ``muster.domain.rates.RateCards``. One is active, none ever changes."""

    __tablename__ = "rate_versions"
    __table_args__ = (Index("uq_rate_versions_active", "is_active", unique=True, postgresql_where=text("is_active")),)

    version: Mapped[int] = mapped_column(Identity(always=True), primary_key=True, init=False)
    document: Mapped[dict[str, Any]]
    is_active: Mapped[bool]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    reason: Mapped[str]
