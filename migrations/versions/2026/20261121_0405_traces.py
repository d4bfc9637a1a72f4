"""Events, audit entries and the outbox."""

from typing import Final

from alembic import op

revision = "20261121_0405"
down_revision = "20261121_0404"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE events (
    id text NOT NULL,
    serial bigint GENERATED ALWAYS AS IDENTITY,
    position bigint,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    subject_type text NOT NULL,
    subject_id text NOT NULL,
    tenant_id text,
    payload jsonb NOT NULL,
    caused_by text,
    CONSTRAINT pk_events PRIMARY KEY (id),
    CONSTRAINT uq_events_position UNIQUE (position)
);
CREATE INDEX ix_events_subject ON events (subject_type, subject_id, serial);
CREATE INDEX ix_events_tenant ON events (tenant_id, position);
CREATE INDEX ix_events_unsequenced ON events (serial) WHERE position IS NULL;

CREATE TABLE consumer_cursors (
    name text NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT pk_consumer_cursors PRIMARY KEY (name)
);

CREATE TABLE audit_entries (
    id text NOT NULL,
    serial bigint GENERATED ALWAYS AS IDENTITY,
    position bigint,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    actor_key_id text,
    role text NOT NULL
        CONSTRAINT ck_audit_entries_role CHECK (role IN ('tenant_member', 'tenant_admin', 'operator', 'auditor',
            'node', 'service')),
    action text NOT NULL,
    subject_type text NOT NULL,
    subject_id text NOT NULL,
    tenant_id text,
    reason text,
    address text,
    request_id text,
    detail jsonb NOT NULL,
    prev_hash bytea,
    hash bytea,
    CONSTRAINT pk_audit_entries PRIMARY KEY (id),
    CONSTRAINT ck_audit_entries_sealed_whole CHECK ((position IS NULL) = (hash IS NULL)),
    CONSTRAINT ck_audit_entries_linked CHECK ((position IS NULL) = (prev_hash IS NULL)),
    CONSTRAINT uq_audit_entries_position UNIQUE (position)
);
CREATE INDEX ix_audit_entries_subject ON audit_entries (subject_type, subject_id, serial);
CREATE INDEX ix_audit_entries_tenant ON audit_entries (tenant_id, serial);
CREATE INDEX ix_audit_entries_unsealed ON audit_entries (serial) WHERE position IS NULL;

CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY,
    topic text NOT NULL,
    key text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    next_try_at timestamptz NOT NULL,
    tries integer NOT NULL,
    sent_at timestamptz,
    dead_at timestamptz,
    last_error text,
    CONSTRAINT pk_outbox PRIMARY KEY (id)
);
CREATE INDEX ix_outbox_pending ON outbox (next_try_at, id) WHERE sent_at IS NULL AND dead_at IS NULL;
"""

DOWN: Final = """
DROP TABLE outbox;
DROP TABLE audit_entries;
DROP TABLE consumer_cursors;
DROP TABLE events;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
