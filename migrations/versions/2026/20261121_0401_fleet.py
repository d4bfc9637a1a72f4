"""Nodes, GPUs with their standings and overrides, cordons."""

from typing import Final

from alembic import op

revision = "20261121_0401"
down_revision = "20261121_0400"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE nodes (
    id text NOT NULL,
    name text NOT NULL,
    contact text NOT NULL
        CONSTRAINT ck_nodes_contact CHECK (contact IN ('LIVE', 'SILENT', 'LOST')),
    boot_id text,
    past_boot_ids jsonb NOT NULL,
    heartbeat_seq bigint NOT NULL,
    last_heartbeat_at timestamptz,
    lease_renewed_at timestamptz,
    address text NOT NULL,
    num_gpus integer NOT NULL,
    is_simulated boolean NOT NULL,
    rack text,
    labels jsonb NOT NULL,
    agent_version text,
    created_at timestamptz NOT NULL,
    version integer NOT NULL,
    CONSTRAINT pk_nodes PRIMARY KEY (id),
    CONSTRAINT ck_nodes_num_gpus CHECK (num_gpus >= 0),
    CONSTRAINT uq_nodes_name UNIQUE (name)
);
CREATE INDEX ix_nodes_contact ON nodes (contact);

CREATE TABLE gpus (
    uuid text NOT NULL,
    node_id text NOT NULL,
    slot_index integer NOT NULL,
    serial text,
    model text NOT NULL,
    memory_bytes bigint NOT NULL,
    compute_capability text NOT NULL,
    driver_version text NOT NULL,
    standing text NOT NULL
        CONSTRAINT ck_gpus_standing CHECK (standing IN ('UNPROVEN', 'PROBATION', 'HEALTHY', 'SUSPECT',
            'QUARANTINED', 'REPAIR', 'RETIRED')),
    origin_standing text
        CONSTRAINT ck_gpus_origin_standing CHECK (origin_standing IN ('UNPROVEN', 'PROBATION', 'HEALTHY',
            'SUSPECT', 'QUARANTINED', 'REPAIR', 'RETIRED')),
    score integer,
    score_valid_until timestamptz,
    is_mig_enabled boolean NOT NULL,
    is_simulated boolean NOT NULL,
    cohort_key text NOT NULL,
    version integer NOT NULL,
    CONSTRAINT pk_gpus PRIMARY KEY (uuid),
    CONSTRAINT uq_gpus_node_id_slot_index UNIQUE (node_id, slot_index),
    CONSTRAINT ck_gpus_score CHECK (score BETWEEN 0 AND 100),
    CONSTRAINT ck_gpus_slot_index CHECK (slot_index >= 0),
    CONSTRAINT ck_gpus_memory_bytes CHECK (memory_bytes > 0),
    CONSTRAINT fk_gpus_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_gpus_cohort_key ON gpus (cohort_key);
CREATE INDEX ix_gpus_serial ON gpus (serial) WHERE serial IS NOT NULL;
CREATE INDEX ix_gpus_standing ON gpus (standing);

CREATE TABLE gpu_standing_changes (
    id bigint GENERATED ALWAYS AS IDENTITY,
    gpu_uuid text NOT NULL,
    origin text
        CONSTRAINT ck_gpu_standing_changes_origin CHECK (origin IN ('UNPROVEN', 'PROBATION', 'HEALTHY',
            'SUSPECT', 'QUARANTINED', 'REPAIR', 'RETIRED')),
    target text NOT NULL
        CONSTRAINT ck_gpu_standing_changes_target CHECK (target IN ('UNPROVEN', 'PROBATION', 'HEALTHY',
            'SUSPECT', 'QUARANTINED', 'REPAIR', 'RETIRED')),
    at timestamptz NOT NULL,
    reason text NOT NULL,
    actor text NOT NULL,
    policy_version integer,
    CONSTRAINT pk_gpu_standing_changes PRIMARY KEY (id),
    CONSTRAINT fk_gpu_standing_changes_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid),
    CONSTRAINT fk_gpu_standing_changes_policy_version FOREIGN KEY (policy_version) REFERENCES policy_versions
        (version)
);
CREATE INDEX ix_gpu_standing_changes_gpu_uuid_id ON gpu_standing_changes (gpu_uuid, id);

CREATE TABLE gpu_overrides (
    id text NOT NULL,
    gpu_uuid text NOT NULL,
    standing text NOT NULL
        CONSTRAINT ck_gpu_overrides_standing CHECK (standing IN ('UNPROVEN', 'PROBATION', 'HEALTHY', 'SUSPECT',
            'QUARANTINED', 'REPAIR', 'RETIRED')),
    reason text NOT NULL,
    actor text NOT NULL,
    until timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    CONSTRAINT pk_gpu_overrides PRIMARY KEY (id),
    CONSTRAINT ck_gpu_overrides_until CHECK (until > created_at),
    CONSTRAINT fk_gpu_overrides_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid)
);
CREATE INDEX ix_gpu_overrides_open ON gpu_overrides (gpu_uuid) WHERE ended_at IS NULL;

CREATE TABLE cordons (
    id text NOT NULL,
    node_id text,
    gpu_uuid text,
    reason_code text NOT NULL,
    reason text NOT NULL,
    owner text NOT NULL,
    until timestamptz,
    created_at timestamptz NOT NULL,
    released_at timestamptz,
    released_by text,
    CONSTRAINT pk_cordons PRIMARY KEY (id),
    CONSTRAINT ck_cordons_one_place CHECK (num_nonnulls(node_id, gpu_uuid) = 1),
    CONSTRAINT ck_cordons_released CHECK ((released_at IS NULL) = (released_by IS NULL)),
    CONSTRAINT fk_cordons_node_id FOREIGN KEY (node_id) REFERENCES nodes (id),
    CONSTRAINT fk_cordons_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid)
);
CREATE INDEX ix_cordons_gpu_uuid_open ON cordons (gpu_uuid) WHERE released_at IS NULL;
CREATE INDEX ix_cordons_node_id_open ON cordons (node_id) WHERE released_at IS NULL;
"""

DOWN: Final = """
DROP TABLE cordons;
DROP TABLE gpu_overrides;
DROP TABLE gpu_standing_changes;
DROP TABLE gpus;
DROP TABLE nodes;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
