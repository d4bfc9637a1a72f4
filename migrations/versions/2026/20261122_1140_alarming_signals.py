"""Mark of a signal that would condemn: its GPU gets no placement from the time it is stored, before it is judged."""

from typing import Final

from alembic import op

revision = "20261122_1140"
down_revision = "20261122_1043"
branch_labels = None
depends_on = None

ADD: Final = """
ALTER TABLE gpu_signals ADD COLUMN is_alarming boolean NOT NULL DEFAULT false;
CREATE INDEX ix_gpu_signals_alarming ON gpu_signals (node_id) WHERE judged_at IS NULL AND is_alarming;
"""
REMOVE: Final = """
DROP INDEX ix_gpu_signals_alarming;
ALTER TABLE gpu_signals DROP COLUMN is_alarming;
"""


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
