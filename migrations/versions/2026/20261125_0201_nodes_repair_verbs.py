"""A node keeps the repair verbs that its agent may do, as the agent last reported them."""

from typing import Final

from alembic import op

revision = "20261125_0201"
down_revision = "20261124_2104"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE nodes ADD COLUMN repair_verbs jsonb NOT NULL DEFAULT '[]'"
DOWN: Final = "ALTER TABLE nodes DROP COLUMN repair_verbs"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
