"""Burn-ins: orders, their figures and verdicts."""

from typing import Final

from alembic import op
from sqlalchemy import Text, column, table

revision = "20261121_0414"
down_revision = "20261121_0412"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE burn_ins (
    id text NOT NULL,
    gpu_uuid text NOT NULL,
    node_id text NOT NULL,
    state text NOT NULL
        CONSTRAINT ck_burn_ins_state CHECK (state IN ('ORDERED', 'RUNNING', 'MEASURED', 'JUDGED', 'ABANDONED')),
    reason text NOT NULL,
    ordered_by text NOT NULL,
    ordered_at timestamptz NOT NULL,
    tries integer NOT NULL,
    began_at timestamptz,
    deadline_at timestamptz,
    ended_at timestamptz,
    last_fault text,
    comparison_key text,
    figures jsonb,
    outcome text
        CONSTRAINT ck_burn_ins_outcome CHECK (outcome IN ('passed', 'failed', 'undecided')),
    reasons jsonb NOT NULL,
    open_bands jsonb NOT NULL,
    num_peers integer NOT NULL,
    judged_at timestamptz,
    policy_version integer,
    CONSTRAINT pk_burn_ins PRIMARY KEY (id),
    CONSTRAINT ck_burn_ins_measured CHECK (
        (state IN ('MEASURED', 'JUDGED')) = (figures IS NOT NULL)
        AND (figures IS NULL) = (comparison_key IS NULL)
    ),
    CONSTRAINT ck_burn_ins_judged CHECK ((state = 'JUDGED') = (outcome IS NOT NULL)),
    CONSTRAINT ck_burn_ins_ended CHECK ((state IN ('ORDERED', 'RUNNING')) = (ended_at IS NULL)),
    CONSTRAINT fk_burn_ins_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid),
    CONSTRAINT fk_burn_ins_node_id FOREIGN KEY (node_id) REFERENCES nodes (id),
    CONSTRAINT fk_burn_ins_policy_version FOREIGN KEY (policy_version) REFERENCES policy_versions (version)
);
CREATE UNIQUE INDEX uq_burn_ins_open ON burn_ins (gpu_uuid) WHERE state IN ('ORDERED', 'RUNNING', 'MEASURED');
CREATE INDEX ix_burn_ins_gpu_uuid_ordered_at ON burn_ins (gpu_uuid, ordered_at);
CREATE INDEX ix_burn_ins_ordered_at_id ON burn_ins (ordered_at, id);
CREATE INDEX ix_burn_ins_waiting ON burn_ins (node_id) WHERE state IN ('ORDERED', 'RUNNING');
CREATE INDEX ix_burn_ins_unjudged ON burn_ins (ended_at) WHERE state = 'MEASURED';
CREATE INDEX ix_burn_ins_open_bands ON burn_ins (ended_at) WHERE state = 'JUDGED' AND open_bands <> '[]';
CREATE INDEX ix_burn_ins_comparison_key_ended_at ON burn_ins (comparison_key, ended_at)
    WHERE comparison_key IS NOT NULL;
CREATE TRIGGER listed_edges_only BEFORE UPDATE ON burn_ins FOR EACH ROW
    WHEN (NEW.state IS DISTINCT FROM OLD.state)
    EXECUTE FUNCTION refuse_unlisted_edge('burn_in', 'state');
CREATE TRIGGER figures_stay BEFORE UPDATE ON burn_ins FOR EACH ROW
    WHEN (OLD.figures IS NOT NULL AND NEW.figures IS DISTINCT FROM OLD.figures)
    EXECUTE FUNCTION refuse('what a burn-in measured never changes');
"""

DOWN: Final = """
DELETE FROM state_edges WHERE machine = 'burn_in';
DROP TABLE burn_ins;
"""

EDGES: Final = {
    "ORDERED": ("RUNNING", "ABANDONED"),
    "RUNNING": ("ORDERED", "MEASURED", "ABANDONED"),
    "MEASURED": ("JUDGED",),
}
STATE_EDGES: Final = table("state_edges", column("machine", Text), column("origin", Text), column("target", Text))


def upgrade() -> None:
    op.execute(UP)
    op.bulk_insert(
        STATE_EDGES,
        [
            {"machine": "burn_in", "origin": origin, "target": target}
            for origin, onward in EDGES.items()
            for target in onward
        ],
    )


def downgrade() -> None:
    op.execute(DOWN)
