"""Indexes by age of what retention deletes, so that a batch reads the rows that it deletes and no others.

They are made without a lock that writers wait for. An earlier try that failed left an invalid index, which goes first.
"""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "20261127_1040"
down_revision = "20261127_1030"
branch_labels = None
depends_on = None

_LOGS: Final = "ix_log_chunks_received_at"
_EVENTS: Final = "ix_events_at"
_OUTBOX: Final = "ix_outbox_over"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()
        op.create_index(_LOGS, "log_chunks", ["received_at"], postgresql_concurrently=True)
        op.create_index(
            _EVENTS, "events", ["at"], postgresql_where=sa.text("position IS NOT NULL"), postgresql_concurrently=True
        )
        op.create_index(_OUTBOX, "outbox", [sa.text("LEAST(sent_at, dead_at)")], postgresql_concurrently=True)


def downgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()


def _remove() -> None:
    for index, table in ((_OUTBOX, "outbox"), (_EVENTS, "events"), (_LOGS, "log_chunks")):
        op.drop_index(index, table_name=table, if_exists=True, postgresql_concurrently=True)
