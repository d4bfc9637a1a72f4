"""Results of a gang's pairwise check before its start: a restarted control plane continues it."""

from typing import Final

from alembic import op

revision = "20261122_1043"
down_revision = "20261122_1042"
branch_labels = None
depends_on = None

ADD: Final = "ALTER TABLE attempts ADD COLUMN pairwise jsonb;"
REMOVE: Final = "ALTER TABLE attempts DROP COLUMN pairwise;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
