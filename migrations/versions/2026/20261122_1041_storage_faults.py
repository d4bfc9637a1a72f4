"""Failures to save checkpoints: by place, host and job, until saves succeed there again."""

from typing import Final

from alembic import op

revision = "20261122_1041"
down_revision = "20261122_1040"
branch_labels = None
depends_on = None

MAKE: Final = """
CREATE TABLE storage_faults (
    place text NOT NULL,
    node_id text NOT NULL,
    job_id text NOT NULL,
    is_shared boolean NOT NULL,
    kind text NOT NULL,
    num_failures bigint NOT NULL,
    num_saves_since bigint NOT NULL,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    cleared_at timestamptz,
    CONSTRAINT pk_storage_faults PRIMARY KEY (place, node_id, job_id),
    CONSTRAINT fk_storage_faults_node_id FOREIGN KEY (node_id) REFERENCES nodes (id),
    CONSTRAINT fk_storage_faults_job_id FOREIGN KEY (job_id) REFERENCES jobs (id)
);
CREATE INDEX ix_storage_faults_standing ON storage_faults (node_id) WHERE cleared_at IS NULL;
"""


def upgrade() -> None:
    op.execute(MAKE)


def downgrade() -> None:
    op.execute("DROP TABLE storage_faults;")
