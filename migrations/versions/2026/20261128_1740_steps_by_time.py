"""Steps are found by their time: an index of block ranges, which costs the reports next to nothing. So are ended jobs.

They are made without a lock that writers wait for. An earlier try that failed left an invalid index, which goes first.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261128_1740"
down_revision = "20261128_1735"
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
            "ix_jobs_finished_at",
            "jobs",
            ["finished_at"],
            postgresql_where=sa.text("finished_at IS NOT NULL"),
            postgresql_concurrently=True,
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()


def _remove() -> None:
    op.drop_index("ix_jobs_finished_at", table_name="jobs", if_exists=True, postgresql_concurrently=True)
    op.drop_index("ix_training_steps_at", table_name="training_steps", if_exists=True, postgresql_concurrently=True)
