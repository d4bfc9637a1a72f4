"""What the versions of a document have, whichever document it is: one is active, and none ever changes."""

from datetime import datetime
from typing import Any

from sqlalchemy import Identity, Index, text
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from muster.db.base import Base


class DocumentVersion(Base):
    __abstract__ = True

    version: Mapped[int] = mapped_column(Identity(always=True), primary_key=True, init=False)
    document: Mapped[dict[str, Any]]
    is_active: Mapped[bool]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    reason: Mapped[str]

    @declared_attr.directive
    @classmethod
    def __table_args__(cls) -> tuple[Index, ...]:
        name = f"uq_{cls.__tablename__}_active"
        return (Index(name, "is_active", unique=True, postgresql_where=text("is_active")),)
