"""Evidence, the breaker's memory, incidents; and the grounds of each move of a standing."""

from typing import Final

from alembic import op

revision = "20261121_0410"
down_revision = "20261121_0409"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE evidence (
    id text NOT NULL,
    gpu_uuid text,
    node_id text NOT NULL,
    detector text NOT NULL,
    detector_version integer NOT NULL,
    fault_key text NOT NULL,
    severity integer NOT NULL,
    trust text NOT NULL
        CONSTRAINT ck_evidence_trust CHECK (trust IN ('measured', 'reported')),
    sources jsonb NOT NULL,
    onset_at timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    counts_for_ms bigint NOT NULL,
    summary text NOT NULL,
    threatens_correctness boolean NOT NULL,
    is_suspended boolean NOT NULL,
    "values" jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    dismissed_at timestamptz,
    dismissed_by text,
    dismiss_reason text,
    CONSTRAINT pk_evidence PRIMARY KEY (id),
    CONSTRAINT ck_evidence_severity CHECK (severity BETWEEN 0 AND 3),
    CONSTRAINT ck_evidence_dismissed CHECK (num_nonnulls(dismissed_at, dismissed_by, dismiss_reason) IN (0, 3)),
    CONSTRAINT fk_evidence_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid),
    CONSTRAINT fk_evidence_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_evidence_gpu_uuid_last_seen_at ON evidence (gpu_uuid, last_seen_at);
CREATE INDEX ix_evidence_node_id_last_seen_at ON evidence (node_id, last_seen_at);

CREATE TABLE breakers (
    name text NOT NULL,
    state jsonb NOT NULL,
    CONSTRAINT pk_breakers PRIMARY KEY (name)
);
INSERT INTO breakers (name, state) VALUES ('quarantine', '{}');

CREATE TABLE incidents (
    id text NOT NULL,
    kind text NOT NULL,
    summary text NOT NULL,
    payload jsonb NOT NULL,
    opened_at timestamptz NOT NULL,
    closed_at timestamptz,
    closed_by text,
    CONSTRAINT pk_incidents PRIMARY KEY (id),
    CONSTRAINT ck_incidents_closed CHECK ((closed_at IS NULL) = (closed_by IS NULL))
);
CREATE INDEX ix_incidents_open ON incidents (opened_at) WHERE closed_at IS NULL;

ALTER TABLE gpu_standing_changes
    ADD COLUMN move_reason text,
    ADD COLUMN evidence_ids jsonb NOT NULL DEFAULT '[]';
ALTER TABLE gpu_standing_changes ALTER COLUMN evidence_ids DROP DEFAULT;
ALTER TABLE gpus ADD COLUMN judge_at timestamptz;
ALTER TABLE attempts ADD COLUMN tainted_since timestamptz;
CREATE INDEX ix_gpus_judge_at ON gpus (judge_at) WHERE judge_at IS NOT NULL;
"""

DOWN: Final = """
DROP INDEX ix_gpus_judge_at;
ALTER TABLE attempts DROP COLUMN tainted_since;
ALTER TABLE gpus DROP COLUMN judge_at;
ALTER TABLE gpu_standing_changes DROP COLUMN evidence_ids, DROP COLUMN move_reason;
DROP TABLE incidents;
DROP TABLE breakers;
DROP TABLE evidence;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
