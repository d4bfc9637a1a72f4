"""A burn-in remembers when each try ran that was given back, which the ledger counts."""

from alembic import op

revision = "20261129_1000"
down_revision = "20261128_1755"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE burn_ins ADD COLUMN IF NOT EXISTS earlier_tries jsonb NOT NULL DEFAULT '[]'")


def downgrade() -> None:
    op.execute("ALTER TABLE burn_ins DROP COLUMN IF EXISTS earlier_tries")
