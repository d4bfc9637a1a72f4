"""Tenants, API keys, idempotency keys."""

from typing import Final

from alembic import op

revision = "20261121_0402"
down_revision = "20261121_0401"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE tenants (
    id text NOT NULL,
    name text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_tenants PRIMARY KEY (id),
    CONSTRAINT uq_tenants_name UNIQUE (name)
);

CREATE TABLE api_keys (
    id text NOT NULL,
    prefix text NOT NULL,
    secret_sha256 bytea NOT NULL,
    name text NOT NULL,
    role text NOT NULL
        CONSTRAINT ck_api_keys_role CHECK (role IN ('tenant_member', 'tenant_admin', 'operator', 'auditor',
            'node', 'service')),
    tenant_id text,
    node_id text,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    version integer NOT NULL,
    CONSTRAINT pk_api_keys PRIMARY KEY (id),
    CONSTRAINT ck_api_keys_tenant_by_role CHECK ((role IN ('tenant_member', 'tenant_admin')) = (tenant_id IS NOT
        NULL)),
    CONSTRAINT ck_api_keys_node_by_role CHECK ((role = 'node') = (node_id IS NOT NULL)),
    CONSTRAINT uq_api_keys_prefix UNIQUE (prefix),
    CONSTRAINT fk_api_keys_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT fk_api_keys_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_api_keys_node_id ON api_keys (node_id);
CREATE INDEX ix_api_keys_tenant_id ON api_keys (tenant_id);

CREATE TABLE idempotency_keys (
    principal_scope text NOT NULL,
    key text NOT NULL,
    method_path text NOT NULL,
    body_sha256 bytea NOT NULL,
    status integer,
    body jsonb,
    etag text,
    location text,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_idempotency_keys PRIMARY KEY (principal_scope, key)
);
CREATE INDEX ix_idempotency_keys_created_at ON idempotency_keys (created_at);
"""

DOWN: Final = """
DROP TABLE idempotency_keys;
DROP TABLE api_keys;
DROP TABLE tenants;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
