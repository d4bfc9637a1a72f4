"""An index of jobs by the job of which they are copies, so that it is known which failed ones were tried again.

It is made without a lock that writers wait for. An earlier try that failed left an invalid index, which goes first.
"""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "20261128_1620"
down_revision = "20261128_1615"
branch_labels = None
depends_on = None

_INDEX: Final = "ix_jobs_copied_from"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()
        only = sa.text("copied_from IS NOT NULL")
        op.create_index(_INDEX, "jobs", ["copied_from"], postgresql_where=only, postgresql_concurrently=True)


def downgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()


def _remove() -> None:
    op.drop_index(_INDEX, table_name="jobs", if_exists=True, postgresql_concurrently=True)
