"""A maintenance window may be evacuated before it starts: the time from which the node's jobs get notice."""

from typing import Final

from alembic import op

revision = "20261123_1602"
down_revision = "20261123_1601"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE cordons ADD COLUMN evacuate_at timestamptz
    CONSTRAINT ck_cordons_evacuate CHECK (evacuate_at <= starts_at);
"""
DOWN: Final = """
ALTER TABLE cordons DROP COLUMN evacuate_at;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
