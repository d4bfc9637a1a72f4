"""Features that each host's worker knows beyond the first release, as of its last heartbeat."""

from typing import Final

from alembic import op

revision = "20261122_1039"
down_revision = "20261122_1038"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE nodes ADD COLUMN knows jsonb DEFAULT '[]'::jsonb NOT NULL;"
DOWN: Final = "ALTER TABLE nodes DROP COLUMN knows;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
