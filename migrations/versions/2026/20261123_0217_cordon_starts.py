"""Cordons that stand from a later time on: maintenance windows."""

from typing import Final

from alembic import op

revision = "20261123_0217"
down_revision = "20261123_0210"
branch_labels = None
depends_on = None

ADD: Final = "ALTER TABLE cordons ADD COLUMN starts_at timestamp with time zone;"
REMOVE: Final = "ALTER TABLE cordons DROP COLUMN starts_at;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
