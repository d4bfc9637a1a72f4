"""Reason why a pending job waits, as tokens with counts, in addition to the sentence for people."""

from alembic import op

revision = "20261123_1801"
down_revision = "20261123_1602"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN wait_verdict jsonb")


def downgrade() -> None:
    op.execute("ALTER TABLE jobs DROP COLUMN wait_verdict")
