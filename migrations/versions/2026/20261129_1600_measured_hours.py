"""What the figures of the ledger need of each hour in addition to its entries: runs of jobs, and idle GPUs by place."""

from alembic import op

revision = "20261129_1600"
down_revision = "20261129_1400"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE ledger_hours ADD COLUMN IF NOT EXISTS measured jsonb")


def downgrade() -> None:
    op.execute("ALTER TABLE ledger_hours DROP COLUMN IF EXISTS measured")
