"""Since when an attempt's program trains: a commit of the attempt before it that is later counts for nothing."""

from typing import Final

from alembic import op

revision = "20261123_0550"
down_revision = "20261123_0217"
branch_labels = None
depends_on = None

ADD: Final = "ALTER TABLE attempts ADD COLUMN training_began_at timestamp with time zone;"
REMOVE: Final = "ALTER TABLE attempts DROP COLUMN training_began_at;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
