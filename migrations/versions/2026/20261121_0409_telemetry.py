"""Telemetry: latest state a row a GPU, a block a report, hourly chunks, gaps, and the judge's inbox."""

from typing import Final

from alembic import op

revision = "20261121_0409"
down_revision = "20261121_0408"
branch_labels = None
depends_on = None

LATEST: Final = """
CREATE TABLE gpu_latest (
    gpu_uuid text NOT NULL,
    node_id text NOT NULL,
    boot_id text NOT NULL,
    boot_order bigint NOT NULL,
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    schema smallint NOT NULL,
    "values" double precision[] NOT NULL,
    is_lost boolean NOT NULL,
    CONSTRAINT pk_gpu_latest PRIMARY KEY (gpu_uuid),
    CONSTRAINT fk_gpu_latest_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid)
) WITH (fillfactor = 60);

CREATE TABLE node_latest (
    node_id text NOT NULL,
    boot_id text,
    boot_order bigint NOT NULL,
    past_boot_ids jsonb NOT NULL,
    seq bigint NOT NULL,
    newest_ms bigint NOT NULL,
    at timestamptz,
    received_at timestamptz,
    skew_ms bigint NOT NULL,
    readings jsonb,
    CONSTRAINT pk_node_latest PRIMARY KEY (node_id),
    CONSTRAINT fk_node_latest_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
) WITH (fillfactor = 60);
"""

HISTORY: Final = """
CREATE TABLE telemetry_blocks (
    node_id text NOT NULL,
    boot_id text NOT NULL,
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    schema smallint NOT NULL,
    content bytea NOT NULL,
    CONSTRAINT pk_telemetry_blocks PRIMARY KEY (node_id, boot_id, seq)
);
CREATE INDEX ix_telemetry_blocks_node_id_at ON telemetry_blocks (node_id, at);

CREATE TABLE telemetry_chunks (
    node_id text NOT NULL,
    hour timestamptz NOT NULL,
    schema smallint NOT NULL,
    gpu_uuids jsonb NOT NULL,
    segment_ends jsonb NOT NULL,
    seconds bytea NOT NULL,
    content bytea NOT NULL,
    CONSTRAINT pk_telemetry_chunks PRIMARY KEY (node_id, hour, schema)
);
ALTER TABLE telemetry_chunks ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE INDEX ix_telemetry_chunks_hour ON telemetry_chunks (hour);

CREATE TABLE telemetry_places (
    gpu_uuid text NOT NULL,
    node_id text NOT NULL,
    last_hour timestamptz NOT NULL,
    CONSTRAINT pk_telemetry_places PRIMARY KEY (gpu_uuid, node_id)
);

CREATE TABLE telemetry_gaps (
    node_id text NOT NULL,
    boot_id text NOT NULL,
    report_seq bigint NOT NULL,
    ordinal smallint NOT NULL,
    priority text NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    num_reports bigint NOT NULL,
    from_at timestamptz NOT NULL,
    until_at timestamptz NOT NULL,
    why text NOT NULL,
    received_at timestamptz NOT NULL,
    CONSTRAINT pk_telemetry_gaps PRIMARY KEY (node_id, boot_id, report_seq, ordinal)
);
CREATE INDEX ix_telemetry_gaps_node_id_until_at ON telemetry_gaps (node_id, until_at);
"""

SIGNALS: Final = """
CREATE TABLE gpu_signals (
    node_id text NOT NULL,
    signal_id text NOT NULL,
    gpu_uuid text,
    kind text NOT NULL,
    source text NOT NULL,
    code integer,
    at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    text text NOT NULL,
    "values" jsonb NOT NULL,
    is_open boolean NOT NULL,
    judged_at timestamptz,
    CONSTRAINT pk_gpu_signals PRIMARY KEY (node_id, signal_id),
    CONSTRAINT fk_gpu_signals_node_id FOREIGN KEY (node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_gpu_signals_unjudged ON gpu_signals (received_at, node_id, signal_id) WHERE judged_at IS NULL;
CREATE INDEX ix_gpu_signals_gpu_uuid_at ON gpu_signals (gpu_uuid, at);
"""

DOWN: Final = """
DROP TABLE gpu_signals;
DROP TABLE telemetry_gaps;
DROP TABLE telemetry_places;
DROP TABLE telemetry_chunks;
DROP TABLE telemetry_blocks;
DROP TABLE node_latest;
DROP TABLE gpu_latest;
"""


def upgrade() -> None:
    for script in (LATEST, HISTORY, SIGNALS):
        op.execute(script)


def downgrade() -> None:
    op.execute(DOWN)
