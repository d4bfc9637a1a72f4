"""Events of each objective by five minutes, and the state of each error budget."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261128_1750"
down_revision = "20261128_1745"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "objective_counts",
        sa.Column("objective", sa.Text(), nullable=False),
        _time("ends_at"),
        sa.Column("num_good", sa.BigInteger(), nullable=False),
        sa.Column("num_bad", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("num_good >= 0 AND num_bad >= 0", name=op.f("ck_objective_counts_counts")),
        sa.PrimaryKeyConstraint("objective", "ends_at", name=op.f("pk_objective_counts")),
    )
    op.create_table(
        "objective_states",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("objective", "job_class", "indicator", "basis")),
        sa.Column("target", sa.Double(), nullable=False),
        sa.Column("window_days", sa.Integer(), nullable=False),
        _time("counted_from"),
        _time("counted_until"),
        sa.Column("state", sa.Text(), nullable=False),
        _time("state_since"),
        sa.Column("burning", postgresql.JSONB(), nullable=False),
        sa.Column("rates", postgresql.JSONB(), nullable=False),
        sa.Column("num_good", sa.BigInteger(), nullable=False),
        sa.Column("num_bad", sa.BigInteger(), nullable=False),
        sa.Column("left_fraction", sa.Double(), nullable=False),
        sa.Column("is_spent", sa.Boolean(), nullable=False),
        sa.CheckConstraint("state IN ('ok', 'ticket', 'page')", name=op.f("ck_objective_states_state")),
        sa.PrimaryKeyConstraint("objective", name=op.f("pk_objective_states")),
    )


def downgrade() -> None:
    op.drop_table("objective_states")
    op.drop_table("objective_counts")


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.TIMESTAMP(timezone=True), nullable=False)
