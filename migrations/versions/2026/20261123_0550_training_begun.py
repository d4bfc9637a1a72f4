"""Start of training of an attempt's program, and whether its cause of end is the program's report alone."""

from typing import Final

from alembic import op

revision = "20261123_0550"
down_revision = "20261123_0217"
branch_labels = None
depends_on = None

ADD: Final = """
ALTER TABLE attempts
    ADD COLUMN training_began_at timestamp with time zone,
    ADD COLUMN ending_is_reported boolean NOT NULL DEFAULT false;
"""
REMOVE: Final = "ALTER TABLE attempts DROP COLUMN training_began_at, DROP COLUMN ending_is_reported;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
