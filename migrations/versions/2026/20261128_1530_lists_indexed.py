"""Indexes of lists in order and bounded in time: GPUs by score, nodes by rack, incidents and the audit by time.

They are made without a lock that writers wait for. An earlier try that failed left an invalid index, which goes first.
"""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "20261128_1530"
down_revision = "20261128_1520"
branch_labels = None
depends_on = None

_SCORES: Final = "ix_gpus_score"
_RACKS: Final = "ix_nodes_rack"
_INCIDENTS: Final = "ix_incidents_opened_at"
_AUDIT: Final = "ix_audit_entries_at"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()
        op.create_index(_SCORES, "gpus", [sa.text("COALESCE(score, 101)"), "uuid"], postgresql_concurrently=True)
        op.create_index(_RACKS, "nodes", ["rack"], postgresql_concurrently=True)
        op.create_index(_INCIDENTS, "incidents", ["opened_at"], postgresql_concurrently=True)
        op.create_index(_AUDIT, "audit_entries", ["at"], postgresql_concurrently=True)


def downgrade() -> None:
    with op.get_context().autocommit_block():
        _remove()


def _remove() -> None:
    for index, table in (
        (_AUDIT, "audit_entries"),
        (_INCIDENTS, "incidents"),
        (_RACKS, "nodes"),
        (_SCORES, "gpus"),
    ):
        op.drop_index(index, table_name=table, if_exists=True, postgresql_concurrently=True)
