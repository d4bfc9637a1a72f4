"""Join tokens by which hosts enrol, and the key and running instance of each enrolled host's agent."""

from typing import Final

from alembic import op

revision = "20261121_0408"
down_revision = "20261121_0407"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE join_tokens (
    prefix text NOT NULL,
    secret_sha256 bytea NOT NULL,
    host_name text NOT NULL,
    address text,
    rack text,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at timestamptz,
    CONSTRAINT pk_join_tokens PRIMARY KEY (prefix),
    CONSTRAINT ck_join_tokens_expires_at CHECK (expires_at > created_at)
);

CREATE TABLE node_identities (
    node_id text NOT NULL,
    public_key bytea NOT NULL,
    enrolled_at timestamptz NOT NULL,
    joined_by text NOT NULL,
    instance text,
    boot_id text,
    past_instances jsonb NOT NULL,
    challenge_ms bigint NOT NULL,
    token_issued_at timestamptz,
    cloned_at timestamptz,
    CONSTRAINT pk_node_identities PRIMARY KEY (node_id),
    CONSTRAINT uq_node_identities_public_key UNIQUE (public_key),
    CONSTRAINT ck_node_identities_public_key CHECK (octet_length(public_key) = 32),
    CONSTRAINT fk_node_identities_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
"""

DOWN: Final = """
DROP TABLE node_identities;
DROP TABLE join_tokens;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
