"""A host's part of a training keeps how long its phases took: limits of the job's next attempt follow from it."""

from alembic import op

revision = "20261128_0231"
down_revision = "20261127_1910"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE training_hosts ADD COLUMN IF NOT EXISTS durations jsonb")


def downgrade() -> None:
    op.execute("ALTER TABLE training_hosts DROP COLUMN IF EXISTS durations")
