"""Reclaims with their notices, the GPUs held for beneficiaries, and quotas."""

from typing import Final

from alembic import op

revision = "20261121_0412"
down_revision = "20261121_0413"
branch_labels = None
depends_on = None

RECLAIMS: Final = """
CREATE TABLE reclaims (
    id text NOT NULL,
    beneficiary_job_id text NOT NULL,
    beneficiary_tenant_id text NOT NULL,
    beneficiary_tier text NOT NULL,
    victim_attempt_id text NOT NULL,
    victim_job_id text NOT NULL,
    victim_tenant_id text NOT NULL,
    victim_tier text NOT NULL,
    num_gpus integer NOT NULL,
    state text NOT NULL
        CONSTRAINT ck_reclaims_state CHECK (state IN ('NOTIFIED', 'RELEASED', 'FORCED', 'WITHDRAWN', 'OVERTAKEN')),
    reason text NOT NULL,
    notice_s double precision NOT NULL,
    notified_at timestamptz NOT NULL,
    deadline_at timestamptz NOT NULL,
    told_at timestamptz,
    settled_at timestamptz,
    settled_why text,
    outcome text
        CONSTRAINT ck_reclaims_outcome CHECK (outcome IN ('checkpointed', 'work_lost')),
    cost_gpu_s double precision NOT NULL,
    lost_gpu_s double precision,
    runner_up jsonb,
    policy_version integer,
    hold_ended_at timestamptz,
    hold_ended_why text,
    CONSTRAINT pk_reclaims PRIMARY KEY (id),
    CONSTRAINT ck_reclaims_settled CHECK ((state = 'NOTIFIED') = (settled_at IS NULL)),
    CONSTRAINT ck_reclaims_outcome_by_state CHECK ((state IN ('RELEASED', 'FORCED')) = (outcome IS NOT NULL)),
    CONSTRAINT ck_reclaims_lost CHECK ((outcome IS NULL) = (lost_gpu_s IS NULL)),
    CONSTRAINT ck_reclaims_hold_ended CHECK ((hold_ended_at IS NULL) = (hold_ended_why IS NULL)),
    CONSTRAINT ck_reclaims_withdrawn_untold CHECK (state <> 'WITHDRAWN' OR told_at IS NULL),
    CONSTRAINT ck_reclaims_deadline CHECK (deadline_at > notified_at),
    CONSTRAINT ck_reclaims_num_gpus CHECK (num_gpus > 0),
    CONSTRAINT fk_reclaims_beneficiary_job_id FOREIGN KEY (beneficiary_job_id) REFERENCES jobs (id),
    CONSTRAINT fk_reclaims_beneficiary_tenant_id FOREIGN KEY (beneficiary_tenant_id) REFERENCES tenants (id),
    CONSTRAINT fk_reclaims_victim_attempt_id FOREIGN KEY (victim_attempt_id) REFERENCES attempts (id),
    CONSTRAINT fk_reclaims_victim_job_id FOREIGN KEY (victim_job_id) REFERENCES jobs (id),
    CONSTRAINT fk_reclaims_victim_tenant_id FOREIGN KEY (victim_tenant_id) REFERENCES tenants (id),
    CONSTRAINT fk_reclaims_policy_version FOREIGN KEY (policy_version) REFERENCES policy_versions (version)
);
CREATE UNIQUE INDEX uq_reclaims_victim ON reclaims (victim_attempt_id) WHERE state = 'NOTIFIED';
CREATE INDEX ix_reclaims_holding ON reclaims (beneficiary_job_id) WHERE hold_ended_at IS NULL;
CREATE INDEX ix_reclaims_settled ON reclaims (settled_at) WHERE state IN ('RELEASED', 'FORCED');
CREATE INDEX ix_reclaims_victim_attempt_id ON reclaims (victim_attempt_id);
CREATE INDEX ix_reclaims_page ON reclaims (notified_at DESC, id DESC);

INSERT INTO state_edges (machine, origin, target) VALUES
    ('reclaim', 'NOTIFIED', 'RELEASED'),
    ('reclaim', 'NOTIFIED', 'FORCED'),
    ('reclaim', 'NOTIFIED', 'WITHDRAWN'),
    ('reclaim', 'NOTIFIED', 'OVERTAKEN');
CREATE TRIGGER listed_edges_only BEFORE UPDATE ON reclaims FOR EACH ROW
    WHEN (NEW.state IS DISTINCT FROM OLD.state)
    EXECUTE FUNCTION refuse_unlisted_edge('reclaim', 'state');
CREATE TRIGGER notice_stays BEFORE UPDATE ON reclaims FOR EACH ROW
    WHEN ((NEW.id, NEW.victim_attempt_id, NEW.beneficiary_job_id, NEW.notice_s, NEW.notified_at, NEW.deadline_at)
        IS DISTINCT FROM
        (OLD.id, OLD.victim_attempt_id, OLD.beneficiary_job_id, OLD.notice_s, OLD.notified_at, OLD.deadline_at))
    EXECUTE FUNCTION refuse('a notice that was given never changes (I8)');
"""

HOLDS_AND_QUOTAS: Final = """
CREATE TABLE gpu_holds (
    gpu_uuid text NOT NULL,
    job_id text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_gpu_holds PRIMARY KEY (gpu_uuid),
    CONSTRAINT fk_gpu_holds_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid),
    CONSTRAINT fk_gpu_holds_job_id FOREIGN KEY (job_id) REFERENCES jobs (id)
);
CREATE INDEX ix_gpu_holds_job_id ON gpu_holds (job_id);

CREATE TABLE quotas (
    tenant_id text NOT NULL,
    tier text NOT NULL,
    ceiling_gpus integer NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT pk_quotas PRIMARY KEY (tenant_id, tier),
    CONSTRAINT ck_quotas_ceiling_gpus CHECK (ceiling_gpus >= 0),
    CONSTRAINT fk_quotas_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
"""

WORKLOAD: Final = """
CREATE INDEX ix_allocations_released_at ON allocations (released_at);
CREATE INDEX ix_checkpoints_durable ON checkpoints (job_id, committed_at) WHERE status IN ('VERIFIED', 'GOOD');
"""
"""For a tenant's highest use within its cap's window, and since when each running job's work is saved."""

DOWN: Final = """
DROP INDEX ix_checkpoints_durable;
DROP INDEX ix_allocations_released_at;
DROP TABLE quotas;
DROP TABLE gpu_holds;
DROP TABLE reclaims;
DELETE FROM state_edges WHERE machine = 'reclaim';
"""


def upgrade() -> None:
    op.execute(RECLAIMS)
    op.execute(HOLDS_AND_QUOTAS)
    op.execute(WORKLOAD)


def downgrade() -> None:
    op.execute(DOWN)
