"""Samples are judged: the judgement's memory of a node's GPUs, signals that could not be judged, repairs."""

from typing import Final

from alembic import op

revision = "20261121_0413"
down_revision = "20261121_0410"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE node_latest ADD COLUMN judge_memory jsonb;
ALTER TABLE gpu_signals
    ADD COLUMN judge_after timestamptz,
    ADD COLUMN judge_fault text;

CREATE TABLE repairs (
    id text NOT NULL,
    gpu_uuid text NOT NULL,
    serial text,
    fault_group text NOT NULL,
    action text NOT NULL,
    reason text NOT NULL,
    started_by text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz,
    outcome text,
    words text,
    CONSTRAINT pk_repairs PRIMARY KEY (id),
    CONSTRAINT ck_repairs_ended CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    CONSTRAINT ck_repairs_outcome CHECK (outcome IN ('done', 'failed', 'timed_out', 'condemned', 'retired')),
    CONSTRAINT ck_repairs_action
        CHECK (action IN ('reset', 'reboot', 'power_cycle', 'field_diagnosis', 'swap', 'other')),
    CONSTRAINT fk_repairs_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid)
);
CREATE UNIQUE INDEX uq_repairs_open ON repairs (gpu_uuid) WHERE ended_at IS NULL;
CREATE INDEX ix_repairs_gpu_uuid_began_at ON repairs (gpu_uuid, began_at);
CREATE INDEX ix_repairs_serial_began_at ON repairs (serial, began_at);
"""

DOWN: Final = """
DROP TABLE repairs;
ALTER TABLE gpu_signals DROP COLUMN judge_fault, DROP COLUMN judge_after;
ALTER TABLE node_latest DROP COLUMN judge_memory;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
