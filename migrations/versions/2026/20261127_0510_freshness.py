"""Store when each group of signals was last delivered, and when an agent counts as silent."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261127_0510"
down_revision = "20261127_0500"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node_latest", sa.Column("freshness", postgresql.JSONB(), nullable=True))
    op.add_column("node_latest", sa.Column("overdue_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("node_latest", sa.Column("silence_stated_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_node_latest_overdue_at", "node_latest", ["overdue_at"], postgresql_where=sa.text("overdue_at IS NOT NULL")
    )


def downgrade() -> None:
    op.drop_index("ix_node_latest_overdue_at", table_name="node_latest")
    op.drop_column("node_latest", "silence_stated_at")
    op.drop_column("node_latest", "overdue_at")
    op.drop_column("node_latest", "freshness")
