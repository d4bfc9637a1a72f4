"""The policy's versions: one is active, none is ever changed."""

from datetime import datetime
from typing import Any

from sqlalchemy import Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base


class PolicyVersion(Base):
    __tablename__ = "policy_versions"
    __table_args__ = (Index("uq_policy_versions_active", "is_active", unique=True, postgresql_where=text("is_active")),)

    version: Mapped[int] = mapped_column(Identity(always=True), primary_key=True, init=False)
    document: Mapped[dict[str, Any]]
    is_active: Mapped[bool]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    reason: Mapped[str]
