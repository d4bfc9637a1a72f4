"""Budgets of tenants, in money."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261128_1730"
down_revision = "20261128_1725"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tenant_budgets",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("amount", sa.Numeric(20, 6), nullable=False),
        *_texts("currency", "window_kind", "action"),
        sa.Column("shares", postgresql.JSONB(), nullable=False),
        _time("begins_at"),
        _time("set_at"),
        *_texts("set_by", "reason"),
        _time("ends_at", nullable=True),
        sa.Column("noticed_share", sa.Integer(), nullable=False),
        _time("noticed_window", nullable=True),
        _time("lifted_at", nullable=True),
        sa.Column("lifted_by", sa.Text(), nullable=True),
        sa.CheckConstraint("amount >= 0", name=op.f("ck_tenant_budgets_amount")),
        sa.CheckConstraint("(window_kind = 'until') = (ends_at IS NOT NULL)", name=op.f("ck_tenant_budgets_ends_at")),
        sa.CheckConstraint("(lifted_at IS NULL) = (lifted_by IS NULL)", name=op.f("ck_tenant_budgets_lifted")),
        sa.CheckConstraint("window_kind IN ('month', 'until')", name=op.f("ck_tenant_budgets_window_kind")),
        sa.CheckConstraint(
            "action IN ('notify', 'no_new_jobs', 'stop_reclaimable')", name=op.f("ck_tenant_budgets_action")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_tenant_budgets_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenant_budgets")),
    )
    only = sa.text("lifted_at IS NULL")
    op.create_index("uq_tenant_budgets_tenant_id", "tenant_budgets", ["tenant_id"], unique=True, postgresql_where=only)


def downgrade() -> None:
    op.drop_table("tenant_budgets")


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.TIMESTAMP(timezone=True), nullable=nullable)


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]
