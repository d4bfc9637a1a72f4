"""Preflight before a job takes GPUs: the host that checks its needs, until when, and the result."""

from typing import Final

from alembic import op

revision = "20261122_1038"
down_revision = "20261122_1035"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE placement_looks (
    job_id text NOT NULL,
    number integer NOT NULL,
    node_id text NOT NULL,
    state text NOT NULL,
    tried jsonb NOT NULL,
    after_attempt integer NOT NULL,
    asked_at timestamptz NOT NULL,
    deadline_at timestamptz NOT NULL,
    answered_at timestamptz,
    why text NOT NULL,
    CONSTRAINT pk_placement_looks PRIMARY KEY (job_id),
    CONSTRAINT fk_placement_looks_job_id FOREIGN KEY (job_id) REFERENCES jobs (id),
    CONSTRAINT fk_placement_looks_node_id FOREIGN KEY (node_id) REFERENCES nodes (id),
    CONSTRAINT ck_placement_looks_state CHECK (state IN ('ASKED', 'FIT', 'UNFIT', 'GIVEN_UP'))
);
CREATE INDEX ix_placement_looks_node_id_asked ON placement_looks (node_id) WHERE state = 'ASKED';
"""
DOWN: Final = "DROP TABLE placement_looks;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
