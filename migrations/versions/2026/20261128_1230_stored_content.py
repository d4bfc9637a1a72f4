"""Folders that tenants store, the objects that they consist of, and the jobs that use them."""

from typing import Final

from alembic import op

revision = "20261128_1230"
down_revision = "20261128_1220"
branch_labels = None
depends_on = None

ADD: Final = """
CREATE TABLE stored_folders (
    id bigint GENERATED ALWAYS AS IDENTITY,
    tenant_id text NOT NULL,
    kind text NOT NULL,
    digest text NOT NULL,
    num_bytes bigint NOT NULL,
    num_files integer NOT NULL,
    state text NOT NULL,
    created_by text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    active_at timestamp with time zone NOT NULL,
    completed_at timestamp with time zone,
    CONSTRAINT pk_stored_folders PRIMARY KEY (id),
    CONSTRAINT uq_stored_folders_tenant_id_kind_digest UNIQUE (tenant_id, kind, digest),
    CONSTRAINT ck_stored_folders_kind CHECK (kind IN ('bundle', 'outputs', 'environment')),
    CONSTRAINT ck_stored_folders_state CHECK (state IN ('uploading', 'complete')),
    CONSTRAINT ck_stored_folders_digest CHECK (digest ~ '^[0-9a-f]{64}$'),
    CONSTRAINT ck_stored_folders_sizes CHECK (num_bytes >= 0 AND num_files >= 0),
    CONSTRAINT ck_stored_folders_completed CHECK ((state = 'complete') = (completed_at IS NOT NULL)),
    CONSTRAINT fk_stored_folders_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_stored_folders_state_active_at ON stored_folders (state, active_at);
CREATE TABLE stored_objects (
    id bigint GENERATED ALWAYS AS IDENTITY,
    tenant_id text NOT NULL,
    kind text NOT NULL,
    digest bytea NOT NULL,
    num_bytes bigint NOT NULL,
    state text NOT NULL,
    idle_at timestamp with time zone,
    doomed_at timestamp with time zone,
    gone_at timestamp with time zone,
    CONSTRAINT pk_stored_objects PRIMARY KEY (id),
    CONSTRAINT uq_stored_objects_tenant_id_kind_digest UNIQUE (tenant_id, kind, digest),
    CONSTRAINT ck_stored_objects_kind CHECK (kind IN ('chunk', 'manifest')),
    CONSTRAINT ck_stored_objects_state CHECK (state IN ('wanted', 'present', 'doomed')),
    CONSTRAINT ck_stored_objects_digest CHECK (octet_length(digest) = 32),
    CONSTRAINT ck_stored_objects_num_bytes CHECK (num_bytes > 0),
    CONSTRAINT ck_stored_objects_doomed CHECK ((state = 'doomed') = (doomed_at IS NOT NULL)),
    CONSTRAINT ck_stored_objects_gone CHECK (gone_at IS NULL OR state = 'doomed'),
    CONSTRAINT fk_stored_objects_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_stored_objects_absent ON stored_objects (tenant_id, id) WHERE state <> 'present';
CREATE INDEX ix_stored_objects_idle ON stored_objects (idle_at) WHERE idle_at IS NOT NULL;
CREATE INDEX ix_stored_objects_doomed ON stored_objects (doomed_at) WHERE doomed_at IS NOT NULL;
CREATE TABLE folder_objects (
    folder_id bigint NOT NULL,
    object_id bigint NOT NULL,
    CONSTRAINT pk_folder_objects PRIMARY KEY (folder_id, object_id),
    CONSTRAINT fk_folder_objects_folder_id FOREIGN KEY (folder_id) REFERENCES stored_folders (id) ON DELETE CASCADE,
    CONSTRAINT fk_folder_objects_object_id FOREIGN KEY (object_id) REFERENCES stored_objects (id)
);
CREATE INDEX ix_folder_objects_object_id ON folder_objects (object_id);
CREATE TABLE folder_jobs (
    job_id text NOT NULL,
    folder_id bigint NOT NULL,
    CONSTRAINT pk_folder_jobs PRIMARY KEY (job_id, folder_id),
    CONSTRAINT fk_folder_jobs_job_id FOREIGN KEY (job_id) REFERENCES jobs (id),
    CONSTRAINT fk_folder_jobs_folder_id FOREIGN KEY (folder_id) REFERENCES stored_folders (id)
);
CREATE INDEX ix_folder_jobs_folder_id ON folder_jobs (folder_id);
CREATE TABLE content_use (
    tenant_id text NOT NULL,
    num_bytes bigint NOT NULL,
    CONSTRAINT pk_content_use PRIMARY KEY (tenant_id),
    CONSTRAINT ck_content_use_num_bytes CHECK (num_bytes >= 0),
    CONSTRAINT fk_content_use_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
"""
REMOVE: Final = "DROP TABLE folder_jobs, folder_objects, stored_objects, stored_folders, content_use;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
