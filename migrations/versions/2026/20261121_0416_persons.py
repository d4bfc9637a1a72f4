"""Persons who sign in to the console, and their sessions."""

from typing import Final

from alembic import op

revision = "20261121_0416"
down_revision = "20261121_0415"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE persons (
    id text NOT NULL,
    name text NOT NULL,
    role text NOT NULL
        CONSTRAINT ck_persons_role CHECK (role IN ('tenant_member', 'tenant_admin', 'operator', 'auditor',
            'node', 'service')),
    password_hash text NOT NULL,
    created_at timestamptz NOT NULL,
    tenant_id text,
    disabled_at timestamptz,
    version integer NOT NULL,
    CONSTRAINT pk_persons PRIMARY KEY (id),
    CONSTRAINT uq_persons_name UNIQUE (name),
    CONSTRAINT ck_persons_tenant_by_role CHECK ((role IN ('tenant_member', 'tenant_admin')) = (tenant_id IS NOT NULL)),
    CONSTRAINT ck_persons_a_persons_role CHECK (role NOT IN ('node', 'service')),
    CONSTRAINT fk_persons_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_persons_tenant_id ON persons (tenant_id);

CREATE TABLE console_sessions (
    id text NOT NULL,
    prefix text NOT NULL,
    secret_sha256 bytea NOT NULL,
    created_at timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    person_id text,
    key_id text,
    address text,
    ended_at timestamptz,
    CONSTRAINT pk_console_sessions PRIMARY KEY (id),
    CONSTRAINT uq_console_sessions_prefix UNIQUE (prefix),
    CONSTRAINT ck_console_sessions_one_holder CHECK ((person_id IS NULL) <> (key_id IS NULL)),
    CONSTRAINT ck_console_sessions_expires_at CHECK (expires_at > created_at),
    CONSTRAINT fk_console_sessions_person_id FOREIGN KEY (person_id) REFERENCES persons (id),
    CONSTRAINT fk_console_sessions_key_id FOREIGN KEY (key_id) REFERENCES api_keys (id)
);
CREATE INDEX ix_console_sessions_person_id ON console_sessions (person_id);
CREATE INDEX ix_console_sessions_key_id ON console_sessions (key_id);
CREATE INDEX ix_console_sessions_live ON console_sessions (expires_at) WHERE ended_at IS NULL;
"""

DOWN: Final = """
DROP TABLE console_sessions;
DROP TABLE persons;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
