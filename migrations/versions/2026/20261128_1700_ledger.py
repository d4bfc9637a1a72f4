"""The ledger: hours, their entries by host and attempt, and sums by group."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261128_1700"
down_revision = "20261128_1620"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_hours()
    _create_entries()
    _create_facts()


def downgrade() -> None:
    op.drop_table("ledger_facts")
    op.drop_table("ledger_entries")
    op.drop_table("ledger_hours")


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.TIMESTAMP(timezone=True), nullable=nullable)


def _texts(*names: str, nullable: bool = False) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=nullable) for name in names]


def _create_hours() -> None:
    op.create_table(
        "ledger_hours",
        _time("hour"),
        _time("computed_at"),
        _time("closed_at", nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("num_gpus", sa.Integer(), nullable=False),
        sa.Column("capacity_ms", sa.BigInteger(), nullable=False),
        sa.Column("unexplained_ms", sa.BigInteger(), nullable=False),
        sa.Column("awaits", sa.Integer(), nullable=False),
        sa.Column("gaps", postgresql.JSONB(), nullable=False),
        sa.CheckConstraint("date_trunc('hour', hour, 'UTC') = hour", name=op.f("ck_ledger_hours_hour")),
        sa.CheckConstraint("capacity_ms >= 0", name=op.f("ck_ledger_hours_capacity_ms")),
        sa.CheckConstraint("closed_at IS NOT NULL OR revision = 0", name=op.f("ck_ledger_hours_revision")),
        sa.PrimaryKeyConstraint("hour", name=op.f("pk_ledger_hours")),
    )
    is_open = sa.text("closed_at IS NULL")
    op.create_index("ix_ledger_hours_open", "ledger_hours", ["hour"], postgresql_where=is_open)


def _create_entries() -> None:
    op.create_table(
        "ledger_entries",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        _time("hour"),
        sa.Column("revision", sa.Integer(), nullable=False),
        *_texts("node_id", "account", "cause"),
        sa.Column("num_ms", sa.BigInteger(), nullable=False),
        sa.Column("gpus", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("gpu_ms", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("evidence", postgresql.ARRAY(sa.Text()), nullable=False),
        *_texts("model", "cohort_key"),
        *_texts("rack", "site", "attempt_id", "job_id", "tenant_id", "tier", "job_class", nullable=True),
        sa.CheckConstraint(
            "cardinality(gpus) = cardinality(gpu_ms) AND cardinality(gpus) > 0", name=op.f("ck_ledger_entries_gpus")
        ),
        sa.ForeignKeyConstraint(["hour"], ["ledger_hours.hour"], name=op.f("fk_ledger_entries_hour")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_entries")),
    )
    op.create_index(op.f("ix_ledger_entries_hour_node_id"), "ledger_entries", ["hour", "node_id"])
    for noun in ("attempt", "job", "tenant"):
        only = sa.text(f"{noun}_id IS NOT NULL")
        op.create_index(f"ix_ledger_entries_{noun}", "ledger_entries", [f"{noun}_id", "hour"], postgresql_where=only)


def _create_facts() -> None:
    keys = ("account", "cause", "tenant_id", "tier", "job_class", "model", "cohort_key", "rack", "site")
    op.create_table(
        "ledger_facts",
        _time("begins_at"),
        sa.Column("span_s", sa.Integer(), nullable=False),
        *_texts(*keys),
        sa.Column("num_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("span_s IN (3600, 86400)", name=op.f("ck_ledger_facts_span_s")),
        sa.PrimaryKeyConstraint("begins_at", "span_s", *keys, name=op.f("pk_ledger_facts")),
    )
    columns = ["span_s", "begins_at", "tenant_id"]
    op.create_index(op.f("ix_ledger_facts_span_s_begins_at_tenant_id"), "ledger_facts", columns)
