"""Allocations, checkpoints and logs."""

from typing import Final

from alembic import op

revision = "20261121_0404"
down_revision = "20261121_0403"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE allocations (
    id text NOT NULL,
    attempt_id text NOT NULL,
    job_id text NOT NULL,
    tenant_id text NOT NULL,
    tier text NOT NULL,
    state text NOT NULL
        CONSTRAINT ck_allocations_state CHECK (state IN ('HELD', 'CLEANING', 'RELEASED')),
    created_at timestamptz NOT NULL,
    released_at timestamptz,
    CONSTRAINT pk_allocations PRIMARY KEY (id),
    CONSTRAINT ck_allocations_released CHECK ((state = 'RELEASED') = (released_at IS NOT NULL)),
    CONSTRAINT uq_allocations_attempt_id UNIQUE (attempt_id),
    CONSTRAINT fk_allocations_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id),
    CONSTRAINT fk_allocations_job_id FOREIGN KEY (job_id) REFERENCES jobs (id),
    CONSTRAINT fk_allocations_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_allocations_job_id ON allocations (job_id);
CREATE INDEX ix_allocations_open ON allocations (tenant_id, tier) WHERE state <> 'RELEASED';

CREATE TABLE allocation_gpus (
    allocation_id text NOT NULL,
    gpu_uuid text NOT NULL,
    node_id text NOT NULL,
    node_rank integer NOT NULL,
    local_index integer NOT NULL,
    state text NOT NULL
        CONSTRAINT ck_allocation_gpus_state CHECK (state IN ('HELD', 'CLEANING', 'RELEASED')),
    CONSTRAINT pk_allocation_gpus PRIMARY KEY (allocation_id, gpu_uuid),
    CONSTRAINT uq_allocation_gpus_allocation_id_node_rank_local_index UNIQUE (allocation_id, node_rank,
        local_index),
    CONSTRAINT fk_allocation_gpus_allocation_id FOREIGN KEY (allocation_id) REFERENCES allocations (id),
    CONSTRAINT fk_allocation_gpus_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid),
    CONSTRAINT fk_allocation_gpus_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_allocation_gpus_node_id_open ON allocation_gpus (node_id) WHERE state <> 'RELEASED';
CREATE UNIQUE INDEX uq_allocation_gpus_taken ON allocation_gpus (gpu_uuid) WHERE state IN ('HELD', 'CLEANING');

CREATE TABLE checkpoints (
    id text NOT NULL,
    job_id text NOT NULL,
    attempt_id text NOT NULL,
    tenant_id text NOT NULL,
    fence bigint NOT NULL,
    step bigint NOT NULL,
    status text NOT NULL
        CONSTRAINT ck_checkpoints_status CHECK (status IN ('WRITING', 'COMMITTED', 'VERIFIED', 'GOOD',
            'REJECTED', 'TAINTED', 'EXPIRED')),
    manifest jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    committed_at timestamptz,
    CONSTRAINT pk_checkpoints PRIMARY KEY (id),
    CONSTRAINT ck_checkpoints_step CHECK (step >= 0),
    CONSTRAINT fk_checkpoints_job_id FOREIGN KEY (job_id) REFERENCES jobs (id),
    CONSTRAINT fk_checkpoints_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id),
    CONSTRAINT fk_checkpoints_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_checkpoints_attempt_id ON checkpoints (attempt_id);
CREATE INDEX ix_checkpoints_generations ON checkpoints (job_id, fence, step);

CREATE TABLE log_chunks (
    attempt_id text NOT NULL,
    node_id text NOT NULL,
    stream text NOT NULL,
    byte_offset bigint NOT NULL,
    tenant_id text NOT NULL,
    job_id text NOT NULL,
    content bytea NOT NULL,
    received_at timestamptz NOT NULL,
    position bigint GENERATED ALWAYS AS IDENTITY,
    CONSTRAINT pk_log_chunks PRIMARY KEY (attempt_id, node_id, stream, byte_offset),
    CONSTRAINT ck_log_chunks_byte_offset CHECK (byte_offset >= 0),
    CONSTRAINT fk_log_chunks_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id)
);
CREATE INDEX ix_log_chunks_job_id_position ON log_chunks (job_id, position);
"""

DOWN: Final = """
DROP TABLE log_chunks;
DROP TABLE checkpoints;
DROP TABLE allocation_gpus;
DROP TABLE allocations;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
