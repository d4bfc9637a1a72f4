"""Proposals of the circuit breaker: what rules would take from new work, and the breaker holds back."""

from typing import Final

from alembic import op

revision = "20261127_0500"
down_revision = "20261126_1455"
branch_labels = None
depends_on = None

MAKE: Final = """
CREATE TABLE breaker_proposals (
    subject_id text NOT NULL,
    way text NOT NULL,
    standing text,
    reason text NOT NULL,
    threatens_correctness boolean NOT NULL,
    proposed_at timestamptz NOT NULL,
    CONSTRAINT pk_breaker_proposals PRIMARY KEY (subject_id, way)
);
"""


def upgrade() -> None:
    op.execute(MAKE)


def downgrade() -> None:
    op.execute("DROP TABLE breaker_proposals;")
