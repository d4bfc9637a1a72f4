"""Money: versions of the rate cards, and budgets of tenants."""

from datetime import datetime
from decimal import Decimal

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index, Numeric, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.db.models.versions import DocumentVersion
from muster.domain.budgets import BudgetAction, BudgetWindow
from muster.domain.ids import TenantId


class RateVersion(DocumentVersion):
    """All rate cards as they were set at once, ``muster.domain.rates.RateCards``."""

    __tablename__ = "rate_versions"


class TenantBudget(Base):
    """A budget of a tenant with all below it. It has at most one that is not lifted; a lifted one never changes.

    ``begins_at``, ``ends_at``: of the window `until`; a month's window is the calendar month in UTC. ``shares``: in
    per cent, of which notice is given. ``noticed_share``: the highest of which it was, in the window that began at
    ``noticed_window``. ``lifted_at``: since when it counts no more, also where another one took its place.
    """

    __tablename__ = "tenant_budgets"
    __table_args__ = (
        CheckConstraint("amount >= 0", name="amount"),
        CheckConstraint("(window_kind = 'until') = (ends_at IS NOT NULL)", name="ends_at"),
        CheckConstraint("(lifted_at IS NULL) = (lifted_by IS NULL)", name="lifted"),
        Index("uq_tenant_budgets_tenant_id", "tenant_id", unique=True, postgresql_where=text("lifted_at IS NULL")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    amount: Mapped[Decimal] = mapped_column(Numeric(20, 6))
    currency: Mapped[str]
    window: Mapped[BudgetWindow] = mapped_column(
        "window_kind", EnumText(BudgetWindow), one_of("window_kind", BudgetWindow)
    )
    action: Mapped[BudgetAction] = mapped_column(EnumText(BudgetAction), one_of("action", BudgetAction))
    shares: Mapped[list[int]]
    begins_at: Mapped[datetime]
    set_at: Mapped[datetime]
    set_by: Mapped[str]
    reason: Mapped[str]
    ends_at: Mapped[datetime | None] = mapped_column(default=None)
    noticed_share: Mapped[int] = mapped_column(default=0)
    noticed_window: Mapped[datetime | None] = mapped_column(default=None)
    lifted_at: Mapped[datetime | None] = mapped_column(default=None)
    lifted_by: Mapped[str | None] = mapped_column(default=None)
