"""An index of jobs by their end, for what is counted by the hour.

It is made without a lock that writers wait for. An earlier try that failed left an invalid index, which goes first.
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
