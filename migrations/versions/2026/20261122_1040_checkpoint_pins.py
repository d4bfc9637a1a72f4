"""Pins of checkpoints, and the time of the last scrub of each."""

from typing import Final

from alembic import op

revision = "20261122_1040"
down_revision = "20261122_1039"
branch_labels = None
depends_on = None

ADD: Final = """
ALTER TABLE checkpoints
    ADD COLUMN pinned_at timestamptz,
    ADD COLUMN pinned_by text,
    ADD COLUMN pin_held_at timestamptz,
    ADD COLUMN scrubbed_at timestamptz;
"""
# Few of many are pinned, and each batch of a job's reports looks them up.
INDEX: Final = "CREATE INDEX ix_checkpoints_pinned ON checkpoints (job_id) WHERE pinned_at IS NOT NULL;"
REMOVE: Final = """
ALTER TABLE checkpoints
    DROP COLUMN scrubbed_at,
    DROP COLUMN pin_held_at,
    DROP COLUMN pinned_by,
    DROP COLUMN pinned_at;
"""


def upgrade() -> None:
    op.execute(ADD)
    op.execute(INDEX)


def downgrade() -> None:
    op.execute(REMOVE)
