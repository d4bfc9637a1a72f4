"""Time at which all hosts of a gang were ready, so that waiting hosts may start."""

from typing import Final

from alembic import op

revision = "20261122_1033"
down_revision = "20261122_1031"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE attempts ADD COLUMN go_at timestamptz;"
DOWN: Final = "ALTER TABLE attempts DROP COLUMN go_at;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
