"""Lines about faults in the output of running jobs, and the transport that NCCL chose, by host.

Signals are indexed by host, kind and time, for what was measured while a job ran. That table is large, so the index
is made first, without a lock that writers wait for. An earlier try that failed left an invalid index, which goes first.
"""

from typing import Final

from alembic import op

revision = "20261127_1900"
down_revision = "20261127_1610"
branch_labels = None
depends_on = None

MAKE: Final = """
ALTER TABLE training_hosts ADD COLUMN findings_offset bigint NOT NULL DEFAULT 0;

CREATE TABLE line_findings (
    attempt_id text NOT NULL,
    node_id text NOT NULL,
    key text NOT NULL,
    pattern text NOT NULL,
    role text NOT NULL
        CONSTRAINT ck_line_findings_role CHECK (role IN ('root', 'cascade', 'symptom')),
    rank bigint,
    host text NOT NULL,
    peer text NOT NULL,
    port integer NOT NULL,
    hca text NOT NULL,
    text text NOT NULL,
    count bigint NOT NULL,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    CONSTRAINT pk_line_findings PRIMARY KEY (attempt_id, node_id, key),
    CONSTRAINT fk_line_findings_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id),
    CONSTRAINT fk_line_findings_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_line_findings_received_at ON line_findings (received_at);

CREATE TABLE attempt_transports (
    attempt_id text NOT NULL,
    node_id text NOT NULL,
    transport text NOT NULL,
    cards jsonb NOT NULL,
    warning text,
    received_at timestamptz NOT NULL,
    CONSTRAINT pk_attempt_transports PRIMARY KEY (attempt_id, node_id),
    CONSTRAINT fk_attempt_transports_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id),
    CONSTRAINT fk_attempt_transports_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_attempt_transports_received_at ON attempt_transports (received_at);

ALTER TABLE verdicts ADD COLUMN forgotten_at timestamptz;
CREATE INDEX ix_verdicts_created_at ON verdicts (created_at);
"""
DROP: Final = """
DROP INDEX ix_verdicts_created_at;
ALTER TABLE verdicts DROP COLUMN forgotten_at;
DROP TABLE attempt_transports, line_findings;
ALTER TABLE training_hosts DROP COLUMN findings_offset;
"""


_SIGNALS: Final = "ix_gpu_signals_node_id_kind_received_at"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        _remove_index()
        op.create_index(_SIGNALS, "gpu_signals", ["node_id", "kind", "received_at"], postgresql_concurrently=True)
    op.execute(MAKE)


def downgrade() -> None:
    op.execute(DROP)
    with op.get_context().autocommit_block():
        _remove_index()


def _remove_index() -> None:
    op.drop_index(_SIGNALS, table_name="gpu_signals", if_exists=True, postgresql_concurrently=True)
