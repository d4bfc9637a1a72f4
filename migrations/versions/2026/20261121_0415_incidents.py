"""Subject of an incident, and the reason why it was closed."""

from typing import Final

from alembic import op

revision = "20261121_0415"
down_revision = "20261121_0414"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE incidents
    ADD COLUMN subject_type text,
    ADD COLUMN subject_id text,
    ADD COLUMN close_reason text;
UPDATE incidents SET
    subject_type = CASE kind
        WHEN 'breaker_open' THEN 'breaker'
        WHEN 'quota_below_holdings' THEN 'tenant'
        WHEN 'suspect_program' THEN 'job'
        ELSE CASE WHEN payload ->> 'subject_id' LIKE 'GPU-%' THEN 'gpu' ELSE 'signal' END
    END,
    subject_id = CASE kind
        WHEN 'breaker_open' THEN 'quarantine'
        ELSE coalesce(payload ->> 'subject_id', payload ->> 'job_id', payload ->> 'tenant_id', id)
    END;
ALTER TABLE incidents
    ALTER COLUMN subject_type SET NOT NULL,
    ALTER COLUMN subject_id SET NOT NULL,
    ADD CONSTRAINT ck_incidents_close_reason CHECK (close_reason IS NULL OR closed_at IS NOT NULL);
CREATE INDEX ix_incidents_subject_id ON incidents (subject_id);
"""

DOWN: Final = """
DROP INDEX ix_incidents_subject_id;
ALTER TABLE incidents
    DROP COLUMN close_reason,
    DROP COLUMN subject_id,
    DROP COLUMN subject_type;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
