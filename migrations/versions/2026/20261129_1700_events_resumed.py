"""An index by which the ledger finds when the attempts of an hour restored their checkpoints.

It is made without a lock that writers wait for. An earlier try that failed left an invalid index, which goes first.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261129_1700"
down_revision = "20261129_1600"
branch_labels = None
depends_on = None
_INDEX = "ix_events_resumed"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()
        op.create_index(
            _INDEX,
            "events",
            ["subject_id"],
            postgresql_where=sa.text("kind = 'attempt.resumed'"),
            postgresql_concurrently=True,
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()


def _remove() -> None:
    op.drop_index(_INDEX, table_name="events", if_exists=True, postgresql_concurrently=True)
