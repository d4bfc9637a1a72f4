"""Energy of an ended attempt: read from the counters' history once, and not for each query."""

from typing import Final

from alembic import op

revision = "20261122_1042"
down_revision = "20261122_1041"
branch_labels = None
depends_on = None

ADD: Final = "ALTER TABLE attempts ADD COLUMN energy jsonb;"
INDEX: Final = """
CREATE INDEX ix_attempts_unmetered ON attempts (ended_at)
    WHERE energy IS NULL AND ended_at IS NOT NULL AND claimed_at IS NOT NULL;
"""
REMOVE: Final = "ALTER TABLE attempts DROP COLUMN energy;"


def upgrade() -> None:
    op.execute(ADD)
    op.execute(INDEX)


def downgrade() -> None:
    op.execute(REMOVE)
