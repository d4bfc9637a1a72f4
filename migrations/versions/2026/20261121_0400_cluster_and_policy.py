"""The cluster's row, the heads of its sequences, its published edges, the policy's versions."""

from typing import Final

from alembic import op

revision = "20261121_0400"
down_revision = None
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE cluster (
    id integer NOT NULL,
    epoch integer NOT NULL,
    fence_serial bigint NOT NULL,
    api_alive_at timestamptz,
    accepting_since timestamptz,
    CONSTRAINT pk_cluster PRIMARY KEY (id),
    CONSTRAINT ck_cluster_only_one CHECK (id = 1)
);

CREATE TABLE sequence_heads (
    name text NOT NULL,
    position bigint NOT NULL,
    hash bytea,
    updated_at timestamptz NOT NULL,
    CONSTRAINT pk_sequence_heads PRIMARY KEY (name)
);

CREATE TABLE state_edges (
    machine text NOT NULL,
    origin text NOT NULL,
    target text NOT NULL,
    CONSTRAINT pk_state_edges PRIMARY KEY (machine, origin, target)
);

CREATE TABLE policy_versions (
    version integer GENERATED ALWAYS AS IDENTITY,
    document jsonb NOT NULL,
    is_active boolean NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT pk_policy_versions PRIMARY KEY (version)
);
CREATE UNIQUE INDEX uq_policy_versions_active ON policy_versions (is_active) WHERE is_active;

INSERT INTO cluster (id, epoch, fence_serial) VALUES (1, 1, 0);
INSERT INTO sequence_heads (name, position, updated_at) VALUES ('audit', 0, now()), ('events', 0, now());
"""

DOWN: Final = """
DROP TABLE policy_versions;
DROP TABLE state_edges;
DROP TABLE sequence_heads;
DROP TABLE cluster;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
