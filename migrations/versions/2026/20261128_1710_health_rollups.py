"""Health and capacity of groups of GPUs over time: rounds, and in each a row a group."""

from typing import Final

from alembic import op

revision = "20261128_1710"
down_revision = "20261128_1705"
branch_labels = None
depends_on = None

ADD: Final = """
CREATE TABLE rollup_rounds (
    at timestamp with time zone NOT NULL,
    taken_at timestamp with time zone NOT NULL,
    step text NOT NULL,
    has_nodes boolean NOT NULL,
    CONSTRAINT pk_rollup_rounds PRIMARY KEY (at),
    CONSTRAINT ck_rollup_rounds_step CHECK (step IN ('five_minutes', 'hour', 'day'))
);
CREATE TABLE health_rollups (
    at timestamp with time zone NOT NULL,
    kind text NOT NULL,
    key text NOT NULL,
    score_tenths smallint NOT NULL,
    mean_tenths smallint NOT NULL,
    worst smallint NOT NULL,
    p10 smallint NOT NULL,
    num_nodes integer NOT NULL,
    num_gpus integer NOT NULL,
    num_healthy integer NOT NULL,
    num_admitted integer NOT NULL,
    num_in_use integer NOT NULL,
    num_reserved integer NOT NULL,
    num_free integer NOT NULL,
    standings jsonb NOT NULL,
    CONSTRAINT pk_health_rollups PRIMARY KEY (kind, at, key),
    CONSTRAINT ck_health_rollups_kind CHECK (kind IN ('node', 'rack', 'cohort', 'site', 'model', 'tenant', 'fleet')),
    CONSTRAINT ck_health_rollups_scores CHECK (score_tenths BETWEEN 0 AND mean_tenths AND mean_tenths <= 1000),
    CONSTRAINT ck_health_rollups_uses CHECK (num_in_use + num_reserved + num_free <= num_gpus AND num_gpus > 0)
);
CREATE INDEX ix_health_rollups_past ON health_rollups (kind, key, at);
"""
REMOVE: Final = """
DROP TABLE health_rollups;
DROP TABLE rollup_rounds;
"""


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
