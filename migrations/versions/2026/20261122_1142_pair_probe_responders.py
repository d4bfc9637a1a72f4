"""Agents that answer probes of other hosts, and their ports."""

from typing import Final

from alembic import op

revision = "20261122_1142"
down_revision = "20261122_1141"
branch_labels = None
depends_on = None

ADD: Final = """
CREATE TABLE pair_probe_responders (
    node_id text NOT NULL,
    session text NOT NULL,
    port integer NOT NULL,
    told_at timestamp with time zone NOT NULL,
    CONSTRAINT pk_pair_probe_responders PRIMARY KEY (node_id),
    CONSTRAINT ck_pair_probe_responders_port CHECK (port BETWEEN 1 AND 65535),
    CONSTRAINT fk_pair_probe_responders_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
"""
REMOVE: Final = "DROP TABLE pair_probe_responders;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
