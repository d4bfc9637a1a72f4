"""Dismissed verdicts that still count as false alarms are indexed by their dismissal: few of all verdicts are.

The index is made without a lock that writers wait for. An earlier try that failed left an invalid index, which goes
first.
"""

from typing import Final

from alembic import op

revision = "20261128_0310"
down_revision = "20261128_0231"
branch_labels = None
depends_on = None

INDEXED: Final = """
CREATE INDEX CONCURRENTLY ix_verdicts_false_alarms ON verdicts (dismissed_at)
    WHERE state = 'dismissed' AND forgotten_at IS NULL
"""
UNINDEXED: Final = "DROP INDEX CONCURRENTLY IF EXISTS ix_verdicts_false_alarms"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(UNINDEXED)
        op.execute(INDEXED)


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(UNINDEXED)
