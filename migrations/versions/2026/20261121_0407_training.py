"""Ranks' reports of their training; generations of checkpoints as the runtime names them."""

from typing import Final

from alembic import op

revision = "20261121_0407"
down_revision = "20261121_0406"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE checkpoints
    ADD COLUMN generation text NOT NULL,
    ADD COLUMN num_bytes bigint,
    ADD COLUMN verified_at timestamptz,
    ADD COLUMN reason text,
    ADD CONSTRAINT uq_checkpoints_job_id_generation UNIQUE (job_id, generation);

CREATE TABLE training_hosts (
    attempt_id text NOT NULL,
    node_id text NOT NULL,
    line_offset bigint NOT NULL,
    num_refused bigint NOT NULL,
    CONSTRAINT pk_training_hosts PRIMARY KEY (attempt_id, node_id),
    CONSTRAINT ck_training_hosts_line_offset CHECK (line_offset >= 0),
    CONSTRAINT fk_training_hosts_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id)
);

CREATE TABLE training_ranks (
    attempt_id text NOT NULL,
    rank integer NOT NULL,
    tenant_id text NOT NULL,
    node_id text NOT NULL,
    world_size integer,
    step bigint,
    loss double precision,
    step_s double precision,
    outcome text,
    updated_at timestamptz NOT NULL,
    CONSTRAINT pk_training_ranks PRIMARY KEY (attempt_id, rank),
    CONSTRAINT fk_training_ranks_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id)
);

CREATE TABLE training_steps (
    attempt_id text NOT NULL,
    step bigint NOT NULL,
    job_id text NOT NULL,
    tenant_id text NOT NULL,
    loss double precision,
    step_s double precision,
    at timestamptz NOT NULL,
    CONSTRAINT pk_training_steps PRIMARY KEY (attempt_id, step),
    CONSTRAINT fk_training_steps_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id)
);
CREATE INDEX ix_training_steps_job_id_step ON training_steps (job_id, step);
"""

DOWN: Final = """
DROP TABLE training_steps;
DROP TABLE training_ranks;
DROP TABLE training_hosts;
ALTER TABLE checkpoints
    DROP CONSTRAINT uq_checkpoints_job_id_generation,
    DROP COLUMN reason,
    DROP COLUMN verified_at,
    DROP COLUMN num_bytes,
    DROP COLUMN generation;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
