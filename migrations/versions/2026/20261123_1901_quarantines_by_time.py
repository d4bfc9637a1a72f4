"""Index of a board's recent quarantines, which each of the scheduler's cycles counts."""

from typing import Final

from alembic import op

revision = "20261123_1901"
down_revision = "20261123_1801"
branch_labels = None
depends_on = None

ADD: Final = """
CREATE INDEX ix_gpu_standing_changes_quarantined ON gpu_standing_changes (at, gpu_uuid) WHERE target = 'QUARANTINED';
"""
REMOVE: Final = "DROP INDEX ix_gpu_standing_changes_quarantined;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
