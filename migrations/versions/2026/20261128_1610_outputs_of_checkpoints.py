"""Outputs that were collected at a checkpoint name it."""

from typing import Final

from alembic import op

revision = "20261128_1610"
down_revision = "20261128_1605"
branch_labels = None
depends_on = None

ADD: Final = """
ALTER TABLE job_outputs ADD COLUMN checkpoint_id text;
UPDATE job_outputs SET checkpoint_id = checkpoints.id FROM checkpoints
WHERE checkpoints.attempt_id = job_outputs.attempt_id AND checkpoints.step = job_outputs.step;
ALTER TABLE job_outputs ADD CONSTRAINT fk_job_outputs_checkpoint_id
    FOREIGN KEY (checkpoint_id) REFERENCES checkpoints (id) ON DELETE SET NULL;
CREATE INDEX ix_job_outputs_checkpoint_id ON job_outputs (checkpoint_id) WHERE checkpoint_id IS NOT NULL;
"""


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.drop_column("job_outputs", "checkpoint_id")
