"""Hosts of an attempt that wait for its go, since when each is ready, and whether the attempt ended by its fault."""

from typing import Final

from alembic import op

revision = "20261122_1034"
down_revision = "20261122_1033"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE attempt_hosts
    ADD COLUMN awaits_go boolean DEFAULT false NOT NULL,
    ADD COLUMN ready_at timestamptz,
    ADD COLUMN is_at_fault boolean DEFAULT false NOT NULL;
"""
DOWN: Final = "ALTER TABLE attempt_hosts DROP COLUMN is_at_fault, DROP COLUMN ready_at, DROP COLUMN awaits_go;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
