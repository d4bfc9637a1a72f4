"""Thinned steps of each rank so far: a page draws them rank by rank."""

from typing import Final

from alembic import op

revision = "20261121_0421"
down_revision = "20261121_0420"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE training_ranks ADD COLUMN history jsonb;"
DOWN: Final = "ALTER TABLE training_ranks DROP COLUMN history;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
