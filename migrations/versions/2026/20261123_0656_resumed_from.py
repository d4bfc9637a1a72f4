"""Generation from which each attempt resumed; for running jobs by the report received before."""

from typing import Final

from alembic import op

revision = "20261123_0656"
down_revision = "20261123_0550"
branch_labels = None
depends_on = None

ADD: Final = "ALTER TABLE attempts ADD COLUMN resumed_from text;"
FILL: Final = """
UPDATE attempts SET resumed_from = heard.generation
FROM (
    SELECT DISTINCT ON (subject_id) subject_id, payload->>'generation' AS generation
    FROM events
    WHERE kind = 'attempt.resumed'
        AND subject_id IN (
            SELECT id FROM attempts WHERE job_id IN (SELECT job_id FROM attempts WHERE state <> 'ENDED')
        )
    ORDER BY subject_id, serial DESC
) AS heard
WHERE attempts.id = heard.subject_id AND heard.generation ~ '^step-[0-9]{1,18}/gen-[0-9]{1,20}$';
"""
REMOVE: Final = "ALTER TABLE attempts DROP COLUMN resumed_from;"


def upgrade() -> None:
    op.execute(ADD)
    op.execute(FILL)


def downgrade() -> None:
    op.execute(REMOVE)
