"""Steps of attempts that ended long ago are thinned: how many rows were removed, and since when none is too many."""

import sqlalchemy as sa
from alembic import op

revision = "20261127_1610"
down_revision = "20261127_1600"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("steps_removed", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.add_column("attempts", sa.Column("steps_thinned_at", sa.DateTime(timezone=True)))
    with op.get_context().autocommit_block():
        _remove_index()
        op.create_index(
            "ix_attempts_unthinned",
            "attempts",
            ["ended_at"],
            postgresql_where=sa.text("steps_thinned_at IS NULL AND ended_at IS NOT NULL"),
            postgresql_concurrently=True,
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        _remove_index()
    op.drop_column("attempts", "steps_thinned_at")
    op.drop_column("attempts", "steps_removed")


def _remove_index() -> None:
    """Remove the index. An earlier try that failed may have left an invalid one."""
    op.drop_index("ix_attempts_unthinned", table_name="attempts", if_exists=True, postgresql_concurrently=True)
