"""Number of hosts of an attempt: each attempt of an elastic job may have another number."""

from typing import Final

from alembic import op

revision = "20261122_1030"
down_revision = "20261122_0733"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE attempts ADD COLUMN num_nodes integer;"
DOWN: Final = "ALTER TABLE attempts DROP COLUMN num_nodes;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
