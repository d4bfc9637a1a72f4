"""Jobs and attempts, with their hosts and stop requests."""

from typing import Final

from alembic import op

revision = "20261121_0403"
down_revision = "20261121_0402"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE jobs (
    id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    tier text NOT NULL,
    state text NOT NULL
        CONSTRAINT ck_jobs_state CHECK (state IN ('QUEUED', 'HELD', 'ACTIVE', 'RECOVERING', 'SUCCEEDED',
            'FAILED', 'CANCELLED')),
    state_reason text NOT NULL,
    spec jsonb NOT NULL,
    submitted_by text NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    finished_at timestamptz,
    restarts_used integer NOT NULL,
    launch_failures integer NOT NULL,
    next_try_at timestamptz,
    cancel_requested_at timestamptz,
    version integer NOT NULL,
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT ck_jobs_finished CHECK ((state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')) = (finished_at IS NOT NULL)),
    CONSTRAINT ck_jobs_counters CHECK (restarts_used >= 0 AND launch_failures >= 0),
    CONSTRAINT fk_jobs_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_jobs_page ON jobs (tenant_id, created_at DESC, id DESC);
CREATE INDEX ix_jobs_queue ON jobs (state, tier, created_at);

CREATE TABLE attempts (
    id text NOT NULL,
    job_id text NOT NULL,
    tenant_id text NOT NULL,
    number integer NOT NULL,
    fence bigint NOT NULL,
    state text NOT NULL
        CONSTRAINT ck_attempts_state CHECK (state IN ('PLACED', 'CLAIMING', 'RUNNING', 'STOPPING', 'LOST',
            'ENDED')),
    resume_state text
        CONSTRAINT ck_attempts_resume_state CHECK (resume_state IN ('PLACED', 'CLAIMING', 'RUNNING', 'STOPPING',
            'LOST', 'ENDED')),
    cause text
        CONSTRAINT ck_attempts_cause CHECK (cause IN ('succeeded', 'user_error', 'gpu_oom', 'host_oom', 'hang',
            'nccl_timeout', 'diverged', 'gpu_fault', 'node_lost', 'launch_failed', 'preflight_failed',
            'reclaimed', 'evacuated', 'maintenance', 'walltime', 'budget', 'cancelled', 'checkpoint_corrupt',
            'resize', 'hot_swap')),
    proof text,
    ending_cause text
        CONSTRAINT ck_attempts_ending_cause CHECK (ending_cause IN ('succeeded', 'user_error', 'gpu_oom',
            'host_oom', 'hang', 'nccl_timeout', 'diverged', 'gpu_fault', 'node_lost', 'launch_failed',
            'preflight_failed', 'reclaimed', 'evacuated', 'maintenance', 'walltime', 'budget', 'cancelled',
            'checkpoint_corrupt', 'resize', 'hot_swap')),
    ending_proof text,
    placed_at timestamptz NOT NULL,
    claimed_at timestamptz,
    running_at timestamptz,
    stopping_at timestamptz,
    lost_at timestamptz,
    ended_at timestamptz,
    wall_deadline_at timestamptz,
    stop_reason text
        CONSTRAINT ck_attempts_stop_reason CHECK (stop_reason IN ('reclaim', 'cancel', 'evacuation',
            'maintenance', 'walltime', 'budget', 'hot_swap', 'resize')),
    stop_deadline_at timestamptz,
    on_node_loss text NOT NULL
        CONSTRAINT ck_attempts_on_node_loss CHECK (on_node_loss IN ('wait', 'fenced')),
    rendezvous_address text NOT NULL,
    rendezvous_port integer NOT NULL,
    version integer NOT NULL,
    CONSTRAINT pk_attempts PRIMARY KEY (id),
    CONSTRAINT uq_attempts_job_id_number UNIQUE (job_id, number),
    CONSTRAINT ck_attempts_ended_with_cause CHECK ((state = 'ENDED') = (cause IS NOT NULL)),
    CONSTRAINT ck_attempts_ended_at CHECK ((state = 'ENDED') = (ended_at IS NOT NULL)),
    CONSTRAINT ck_attempts_stop CHECK ((stop_reason IS NULL) = (stop_deadline_at IS NULL)),
    CONSTRAINT ck_attempts_resume CHECK (resume_state NOT IN ('LOST', 'ENDED')),
    CONSTRAINT fk_attempts_job_id FOREIGN KEY (job_id) REFERENCES jobs (id),
    CONSTRAINT fk_attempts_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT uq_attempts_fence UNIQUE (fence)
);
CREATE INDEX ix_attempts_live ON attempts (state) WHERE state <> 'ENDED';
CREATE UNIQUE INDEX uq_attempts_job_id_live ON attempts (job_id) WHERE state <> 'ENDED';

CREATE TABLE attempt_hosts (
    attempt_id text NOT NULL,
    node_id text NOT NULL,
    node_rank integer NOT NULL,
    state text NOT NULL
        CONSTRAINT ck_attempt_hosts_state CHECK (state IN ('UNCLAIMED', 'CLAIMED', 'STARTED', 'EXITED',
            'CLEAN')),
    boot_id text,
    nonce text,
    rung_at timestamptz,
    ring_count integer NOT NULL,
    claimed_at timestamptz,
    started_at timestamptz,
    exited_at timestamptz,
    clean_at timestamptz,
    omitted_at timestamptz,
    is_past_lease boolean NOT NULL,
    exit_record jsonb,
    clean_proof jsonb,
    CONSTRAINT pk_attempt_hosts PRIMARY KEY (attempt_id, node_id),
    CONSTRAINT uq_attempt_hosts_attempt_id_node_rank UNIQUE (attempt_id, node_rank),
    CONSTRAINT fk_attempt_hosts_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id),
    CONSTRAINT fk_attempt_hosts_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_attempt_hosts_node_id_unclean ON attempt_hosts (node_id) WHERE state <> 'CLEAN';

CREATE TABLE stop_requests (
    id text NOT NULL,
    attempt_id text NOT NULL,
    tenant_id text NOT NULL,
    reason text NOT NULL
        CONSTRAINT ck_stop_requests_reason CHECK (reason IN ('reclaim', 'cancel', 'evacuation', 'maintenance',
            'walltime', 'budget', 'hot_swap', 'resize')),
    deadline_at timestamptz NOT NULL,
    requested_by text NOT NULL,
    detail text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_stop_requests PRIMARY KEY (id),
    CONSTRAINT fk_stop_requests_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id),
    CONSTRAINT fk_stop_requests_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_stop_requests_attempt_id ON stop_requests (attempt_id);
"""

DOWN: Final = """
DROP TABLE stop_requests;
DROP TABLE attempt_hosts;
DROP TABLE attempts;
DROP TABLE jobs;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
