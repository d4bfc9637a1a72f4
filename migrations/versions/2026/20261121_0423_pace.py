"""Time of a job's steps by part: the newest report of each rank, all of rank 0's. And its warnings."""

from typing import Final

from alembic import op

revision = "20261121_0423"
down_revision = "20261121_0422"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE training_ranks ADD COLUMN pace jsonb;
ALTER TABLE training_ranks ADD COLUMN warnings jsonb;
ALTER TABLE training_steps ADD COLUMN pace jsonb;
CREATE INDEX ix_training_steps_paced ON training_steps (attempt_id, step) WHERE pace IS NOT NULL;
"""
DOWN: Final = """
DROP INDEX ix_training_steps_paced;
ALTER TABLE training_steps DROP COLUMN pace;
ALTER TABLE training_ranks DROP COLUMN warnings;
ALTER TABLE training_ranks DROP COLUMN pace;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
