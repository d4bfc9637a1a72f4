"""Index of events of a kind that a release did not know, for the release that does."""

from typing import Final

from alembic import op

revision = "20261124_1911"
down_revision = "20261124_1910"
branch_labels = None
depends_on = None

ADD: Final = """
CREATE INDEX ix_gpu_signals_unknown_kind ON gpu_signals (kind)
    WHERE judged_at IS NOT NULL AND judge_fault IS NOT NULL;
"""
REMOVE: Final = "DROP INDEX ix_gpu_signals_unknown_kind;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
