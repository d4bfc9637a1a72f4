"""The figure store: which hours are counted, and what was counted in each, by group."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261128_1735"
down_revision = "20261128_1730"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_hours()
    _create_facts()


def downgrade() -> None:
    op.drop_table("figure_facts")
    op.drop_table("figure_hours")


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.TIMESTAMP(timezone=True), nullable=nullable)


def _create_hours() -> None:
    op.create_table(
        "figure_hours",
        sa.Column("source", sa.Text(), nullable=False),
        _time("hour"),
        _time("counted_at", nullable=True),
        _time("closed_at", nullable=True),
        _time("claimed_until", nullable=True),
        sa.CheckConstraint("date_trunc('hour', hour, 'UTC') = hour", name=op.f("ck_figure_hours_hour")),
        sa.CheckConstraint("closed_at IS NULL OR counted_at IS NOT NULL", name=op.f("ck_figure_hours_closed_at")),
        sa.PrimaryKeyConstraint("source", "hour", name=op.f("pk_figure_hours")),
    )
    is_open = sa.text("closed_at IS NULL")
    op.create_index("ix_figure_hours_open", "figure_hours", ["source", "hour"], postgresql_where=is_open)


def _create_facts() -> None:
    keys = ("figure", "part", "tenant_id", "tier", "job_class", "site")
    op.create_table(
        "figure_facts",
        _time("begins_at"),
        sa.Column("span_s", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in keys),
        sa.Column("num", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
        sa.Column("least", sa.Double(), nullable=True),
        sa.Column("most", sa.Double(), nullable=True),
        sa.Column("buckets", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("counts", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.CheckConstraint("span_s IN (3600, 86400)", name=op.f("ck_figure_facts_span_s")),
        sa.CheckConstraint("cardinality(buckets) = cardinality(counts)", name=op.f("ck_figure_facts_buckets")),
        sa.CheckConstraint("(cardinality(buckets) = 0) = (least IS NULL)", name=op.f("ck_figure_facts_least")),
        sa.CheckConstraint("(least IS NULL) = (most IS NULL)", name=op.f("ck_figure_facts_most")),
        sa.PrimaryKeyConstraint("begins_at", "span_s", *keys, name=op.f("pk_figure_facts")),
    )
    columns = ["figure", "span_s", "begins_at"]
    op.create_index(op.f("ix_figure_facts_figure_span_s_begins_at"), "figure_facts", columns)
