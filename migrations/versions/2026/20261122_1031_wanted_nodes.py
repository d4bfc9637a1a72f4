"""Number of hosts that was requested for an elastic job after it was submitted."""

from typing import Final

from alembic import op

revision = "20261122_1031"
down_revision = "20261122_1030"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE jobs ADD COLUMN wanted_nodes integer;"
DOWN: Final = "ALTER TABLE jobs DROP COLUMN wanted_nodes;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
