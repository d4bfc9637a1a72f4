"""Quotas: how many GPUs a tenant may hold in a tier."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import TenantId


class Quota(Base):
    """``ceiling_gpus`` is never passed by a placement (I6). A tenant without a row in a tier has no ceiling there."""

    __tablename__ = "quotas"
    __table_args__ = (CheckConstraint("ceiling_gpus >= 0", name="ceiling_gpus"),)

    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    ceiling_gpus: Mapped[int]
    updated_at: Mapped[datetime]
