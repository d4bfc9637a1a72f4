"""Mark of an attempt whose known cause is only a part's reaction to the failure of another one."""

from typing import Final

from alembic import op

revision = "20261122_0424"
down_revision = "20261121_0423"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE attempts ADD COLUMN ending_is_cascade boolean DEFAULT false NOT NULL;"
DOWN: Final = "ALTER TABLE attempts DROP COLUMN ending_is_cascade;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
