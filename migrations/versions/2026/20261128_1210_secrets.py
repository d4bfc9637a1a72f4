"""Tenants' secrets as envelopes, and which of them a job names."""

from typing import Final

from alembic import op

revision = "20261128_1210"
down_revision = "20261128_0310"
branch_labels = None
depends_on = None

MAKE: Final = """
CREATE TABLE secrets (
    id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    jobs jsonb NOT NULL,
    version integer NOT NULL
        CONSTRAINT ck_secrets_version CHECK (version > 0),
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    rotated_at timestamptz,
    CONSTRAINT pk_secrets PRIMARY KEY (id),
    CONSTRAINT uq_secrets_tenant_id_name UNIQUE (tenant_id, name),
    CONSTRAINT fk_secrets_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id) ON DELETE CASCADE
);

CREATE TABLE secret_versions (
    secret_id text NOT NULL,
    version integer NOT NULL
        CONSTRAINT ck_secret_versions_version CHECK (version > 0),
    key_id text NOT NULL,
    wrapped_key bytea NOT NULL,
    nonce bytea NOT NULL,
    sealed bytea NOT NULL,
    num_bytes integer NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    CONSTRAINT pk_secret_versions PRIMARY KEY (secret_id, version),
    CONSTRAINT fk_secret_versions_secret_id FOREIGN KEY (secret_id) REFERENCES secrets (id) ON DELETE CASCADE
);
CREATE INDEX ix_secret_versions_key_id ON secret_versions (key_id);

CREATE TABLE job_secrets (
    job_id text NOT NULL,
    name text NOT NULL,
    CONSTRAINT pk_job_secrets PRIMARY KEY (job_id, name),
    CONSTRAINT fk_job_secrets_job_id FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
"""


def upgrade() -> None:
    op.execute(MAKE)


def downgrade() -> None:
    op.execute("DROP TABLE job_secrets, secret_versions, secrets")
