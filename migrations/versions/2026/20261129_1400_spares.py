"""Which GPUs the scheduler kept as spares, and when: the ledger counts their time."""

import sqlalchemy as sa
from alembic import op

revision = "20261129_1400"
down_revision = "20261129_1000"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gpu_spares",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("began_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("ended_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpu_spares")),
        sa.CheckConstraint("began_at <= ended_at", name=op.f("ck_gpu_spares_ended_at")),
    )
    op.create_index(op.f("ix_gpu_spares_ended_at"), "gpu_spares", ["ended_at"])
    op.create_index(
        "uq_gpu_spares_kept", "gpu_spares", ["gpu_uuid"], unique=True, postgresql_where=sa.text("ended_at IS NULL")
    )


def downgrade() -> None:
    op.drop_table("gpu_spares")
