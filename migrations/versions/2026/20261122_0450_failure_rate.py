"""The fleet's record of failures, and at which interval an attempt saves."""

from typing import Final

from alembic import op

revision = "20261122_0450"
down_revision = "20261122_0441"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE cluster ADD COLUMN num_failures integer DEFAULT 0 NOT NULL;
ALTER TABLE cluster ADD COLUMN gpu_hours double precision DEFAULT 0 NOT NULL;
ALTER TABLE attempts ADD COLUMN checkpoint_interval jsonb;
CREATE INDEX ix_attempts_ended_at ON attempts (ended_at);
"""
DOWN: Final = """
DROP INDEX ix_attempts_ended_at;
ALTER TABLE attempts DROP COLUMN checkpoint_interval;
ALTER TABLE cluster DROP COLUMN gpu_hours;
ALTER TABLE cluster DROP COLUMN num_failures;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
