"""The class of each job, and an index of ended jobs by their end, from which objectives are counted.

The index is made without a lock that writers wait for. An earlier try that failed left an invalid index, which goes
first.
"""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "20261128_1745"
down_revision = "20261128_1740"
branch_labels = None
depends_on = None

_INDEX: Final = "ix_jobs_finished"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("job_class", sa.Text(), nullable=True))
    with op.get_context().autocommit_block():
        _remove()
        only = sa.text("finished_at IS NOT NULL")
        op.create_index(_INDEX, "jobs", ["finished_at"], postgresql_where=only, postgresql_concurrently=True)


def downgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()
    op.drop_column("jobs", "job_class")


def _remove() -> None:
    op.drop_index(_INDEX, table_name="jobs", if_exists=True, postgresql_concurrently=True)
