"""Quotas: how many GPUs a tenant may hold in a tier."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import TenantId


class Quota(Base):
    """The quota of a tenant and all below it.

    No placement exceeds its ceiling, nor its guarantee with what it may borrow (I6); None: no limit. A tenant without a
    row in a tier has no guarantee there.
    """

    __tablename__ = "quotas"
    __table_args__ = (
        CheckConstraint("ceiling_gpus >= 0", name="ceiling_gpus"),
        CheckConstraint("guaranteed_gpus >= 0 AND guaranteed_gpus <= ceiling_gpus", name="guaranteed_gpus"),
        CheckConstraint("borrowable_gpus >= 0", name="borrowable_gpus"),
    )

    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    ceiling_gpus: Mapped[int | None]
    updated_at: Mapped[datetime]
    guaranteed_gpus: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    borrowable_gpus: Mapped[int | None] = mapped_column(default=None)
