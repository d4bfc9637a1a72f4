"""Indexes by which the ledger finds an hour's steps and rollbacks.

Steps are stored in the order of time, so a block range index finds an hour of them, and costs an insertion nothing.
Both are made without a lock that writers wait for. An earlier try that failed left an invalid index, which goes first.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261128_1721"
down_revision = "20261128_1720"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()
        op.create_index(
            "ix_training_steps_at",
            "training_steps",
            ["at"],
            postgresql_using="brin",
            postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
            postgresql_concurrently=True,
        )
        op.create_index(
            "ix_events_rolled_back",
            "events",
            ["subject_id"],
            postgresql_where=sa.text("kind = 'attempt.rolled_back'"),
            postgresql_concurrently=True,
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()


def _remove() -> None:
    op.drop_index("ix_events_rolled_back", table_name="events", if_exists=True, postgresql_concurrently=True)
    op.drop_index("ix_training_steps_at", table_name="training_steps", if_exists=True, postgresql_concurrently=True)
