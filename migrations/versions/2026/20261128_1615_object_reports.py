"""Objects of the store that hosts could not read, and jobs that are held until their bundle is whole again."""

from typing import Final

from alembic import op

revision = "20261128_1615"
down_revision = "20261128_1610"
branch_labels = None
depends_on = None

ADD: Final = """
CREATE TABLE object_reports (
    object_id bigint NOT NULL,
    node_id text,
    reported_at timestamp with time zone NOT NULL,
    checked_at timestamp with time zone,
    CONSTRAINT pk_object_reports PRIMARY KEY (object_id),
    CONSTRAINT fk_object_reports_object_id FOREIGN KEY (object_id) REFERENCES stored_objects (id) ON DELETE CASCADE,
    CONSTRAINT fk_object_reports_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_object_reports_checked_at_reported_at ON object_reports (checked_at, reported_at);
ALTER TABLE folder_jobs ADD COLUMN is_awaited boolean DEFAULT false NOT NULL;
CREATE INDEX ix_folder_jobs_awaited ON folder_jobs (folder_id) WHERE is_awaited;
"""
REMOVE: Final = """
DROP INDEX ix_folder_jobs_awaited;
ALTER TABLE folder_jobs DROP COLUMN is_awaited;
DROP TABLE object_reports;
"""


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
