"""Builds of bundles from git commits, next to those of environments."""

from typing import Final

from alembic import op

revision = "20261128_1600"
down_revision = "20261128_1530"
branch_labels = None
depends_on = None

ADD: Final = "ALTER TABLE environment_builds ADD COLUMN source text;"
REMOVE: Final = "ALTER TABLE environment_builds DROP COLUMN source;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
