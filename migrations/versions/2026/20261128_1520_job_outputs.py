"""Outputs of jobs: the folders that hosts collect at the end of an attempt and at its checkpoints, with their files."""

from typing import Final

from alembic import op

revision = "20261128_1520"
down_revision = "20261128_1510"
branch_labels = None
depends_on = None

ADD: Final = """
CREATE TABLE job_outputs (
    id bigint GENERATED ALWAYS AS IDENTITY,
    job_id text NOT NULL,
    attempt_id text NOT NULL,
    node_rank integer NOT NULL,
    step bigint,
    folder_id bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT pk_job_outputs PRIMARY KEY (id),
    CONSTRAINT uq_job_outputs_attempt_id_node_rank_step UNIQUE NULLS NOT DISTINCT (attempt_id, node_rank, step),
    CONSTRAINT ck_job_outputs_numbers CHECK (node_rank >= 0 AND step >= 0),
    CONSTRAINT fk_job_outputs_job_id FOREIGN KEY (job_id) REFERENCES jobs (id),
    CONSTRAINT fk_job_outputs_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id),
    CONSTRAINT fk_job_outputs_folder_id FOREIGN KEY (folder_id) REFERENCES stored_folders (id)
);
CREATE INDEX ix_job_outputs_job_id_id ON job_outputs (job_id, id);
CREATE INDEX ix_job_outputs_folder_id ON job_outputs (folder_id);
CREATE TABLE folder_files (
    folder_id bigint NOT NULL,
    number integer NOT NULL,
    path text NOT NULL,
    num_bytes bigint NOT NULL,
    CONSTRAINT pk_folder_files PRIMARY KEY (folder_id, number),
    CONSTRAINT ck_folder_files_numbers CHECK (number >= 1 AND num_bytes >= 0),
    CONSTRAINT fk_folder_files_folder_id FOREIGN KEY (folder_id) REFERENCES stored_folders (id) ON DELETE CASCADE
);
"""


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.drop_table("folder_files")
    op.drop_table("job_outputs")
