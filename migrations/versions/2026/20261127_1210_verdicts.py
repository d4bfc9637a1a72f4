"""Reports of attempts that make no progress, verdicts on them, and ``hang`` as a reason to stop an attempt."""

from typing import Final

from alembic import op

revision = "20261127_1210"
down_revision = "20261127_1120"
branch_labels = None
depends_on = None

MAKE: Final = """
CREATE TABLE stall_reports (
    attempt_id text NOT NULL,
    node_id text NOT NULL,
    report jsonb NOT NULL,
    received_at timestamptz NOT NULL,
    judged_at timestamptz,
    moved_at timestamptz,
    CONSTRAINT pk_stall_reports PRIMARY KEY (attempt_id, node_id),
    CONSTRAINT fk_stall_reports_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id),
    CONSTRAINT fk_stall_reports_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_stall_reports_received_at ON stall_reports (received_at);
CREATE INDEX ix_stall_reports_unjudged ON stall_reports (attempt_id) WHERE judged_at IS NULL;

CREATE TABLE verdicts (
    id text NOT NULL,
    attempt_id text NOT NULL,
    job_id text NOT NULL,
    tenant_id text NOT NULL,
    kind text NOT NULL
        CONSTRAINT ck_verdicts_kind
        CHECK (kind IN ('hang', 'straggler', 'divergence', 'corruption', 'value_fault')),
    cause text NOT NULL,
    ranks jsonb NOT NULL,
    node_id text,
    gpu text NOT NULL,
    phase text NOT NULL,
    step bigint NOT NULL,
    operation text NOT NULL,
    frame jsonb,
    evidence jsonb NOT NULL,
    sentence text NOT NULL,
    reaction text NOT NULL
        CONSTRAINT ck_verdicts_reaction CHECK (reaction IN ('restart', 'hold', 'notify', 'none')),
    state text NOT NULL
        CONSTRAINT ck_verdicts_state CHECK (state IN ('standing', 'dismissed')),
    created_at timestamptz NOT NULL,
    dismissed_at timestamptz,
    dismissed_by text,
    dismiss_reason text,
    CONSTRAINT pk_verdicts PRIMARY KEY (id),
    CONSTRAINT ck_verdicts_dismissed CHECK (num_nonnulls(dismissed_at, dismissed_by, dismiss_reason) IN (0, 3)),
    CONSTRAINT ck_verdicts_state_dismissed CHECK ((state = 'dismissed') = (dismissed_at IS NOT NULL)),
    CONSTRAINT fk_verdicts_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id),
    CONSTRAINT fk_verdicts_job_id FOREIGN KEY (job_id) REFERENCES jobs (id),
    CONSTRAINT fk_verdicts_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT fk_verdicts_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE UNIQUE INDEX uq_verdicts_attempt_id ON verdicts (attempt_id, kind, step);
CREATE INDEX ix_verdicts_job_id_id ON verdicts (job_id, id);
CREATE INDEX ix_verdicts_tenant_id_id ON verdicts (tenant_id, id);
CREATE INDEX ix_verdicts_node_id_id ON verdicts (node_id, id);
"""
DROP: Final = "DROP TABLE stall_reports, verdicts;"
_REASONS: Final = "'reclaim', 'cancel', 'evacuation', 'maintenance', 'walltime', 'budget', 'hot_swap', 'resize'"
CHECKS: Final = """
ALTER TABLE attempts
    DROP CONSTRAINT ck_attempts_stop_reason,
    ADD CONSTRAINT ck_attempts_stop_reason CHECK (stop_reason IN ({reasons}));
ALTER TABLE stop_requests
    DROP CONSTRAINT ck_stop_requests_reason,
    ADD CONSTRAINT ck_stop_requests_reason CHECK (reason IN ({reasons}));
"""
FORGET: Final = """
ALTER TABLE attempts DISABLE TRIGGER USER;
UPDATE attempts SET stop_reason = 'budget' WHERE stop_reason = 'hang';
ALTER TABLE attempts ENABLE TRIGGER USER;
UPDATE stop_requests SET reason = 'budget' WHERE reason = 'hang';
"""


def upgrade() -> None:
    op.execute(MAKE)
    op.execute(CHECKS.format(reasons=f"{_REASONS}, 'hang'"))


def downgrade() -> None:
    op.execute(DROP)
    op.execute(FORGET)  # the release before cannot read that reason
    op.execute(CHECKS.format(reasons=_REASONS))
