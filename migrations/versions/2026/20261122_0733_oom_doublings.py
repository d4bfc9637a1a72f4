"""Number of times that a job's accumulation has doubled because its program ran out of GPU memory."""

from typing import Final

from alembic import op

revision = "20261122_0733"
down_revision = "20261122_0450"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE jobs ADD COLUMN oom_doublings integer DEFAULT 0 NOT NULL;"
DOWN: Final = "ALTER TABLE jobs DROP COLUMN oom_doublings;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
