"""Builds of environments by tenant and key, and the jobs that asked for each."""

from typing import Final

from alembic import op

revision = "20261128_1510"
down_revision = "20261128_1235"
branch_labels = None
depends_on = None

ADD: Final = """
CREATE TABLE environment_builds (
    id bigint GENERATED ALWAYS AS IDENTITY,
    tenant_id text NOT NULL,
    key text NOT NULL,
    interpreter text NOT NULL,
    platform text NOT NULL,
    state text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    part_id text,
    node_id text,
    lease_until timestamp with time zone,
    folder_id bigint,
    words text NOT NULL,
    line integer,
    log text NOT NULL,
    CONSTRAINT pk_environment_builds PRIMARY KEY (id),
    CONSTRAINT uq_environment_builds_tenant_id_key UNIQUE (tenant_id, key),
    CONSTRAINT ck_environment_builds_key CHECK (key ~ '^[0-9a-f]{64}$'),
    CONSTRAINT ck_environment_builds_state CHECK (state IN ('waiting', 'building', 'built', 'failed')),
    CONSTRAINT ck_environment_builds_lease CHECK ((state = 'building') = (lease_until IS NOT NULL)),
    CONSTRAINT ck_environment_builds_folder CHECK ((state = 'built') = (folder_id IS NOT NULL)),
    CONSTRAINT fk_environment_builds_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id) ON DELETE CASCADE,
    CONSTRAINT fk_environment_builds_node_id FOREIGN KEY (node_id) REFERENCES nodes (id),
    CONSTRAINT fk_environment_builds_folder_id FOREIGN KEY (folder_id) REFERENCES stored_folders (id) ON DELETE CASCADE
);
CREATE INDEX ix_environment_builds_state_changed_at ON environment_builds (state, changed_at);
CREATE INDEX ix_environment_builds_folder_id ON environment_builds (folder_id);
CREATE TABLE environment_jobs (
    job_id text NOT NULL,
    build_id bigint NOT NULL,
    CONSTRAINT pk_environment_jobs PRIMARY KEY (job_id, build_id),
    CONSTRAINT fk_environment_jobs_job_id FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT fk_environment_jobs_build_id FOREIGN KEY (build_id) REFERENCES environment_builds (id) ON DELETE CASCADE
);
CREATE INDEX ix_environment_jobs_build_id ON environment_jobs (build_id);
"""
REMOVE: Final = "DROP TABLE environment_jobs, environment_builds;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
