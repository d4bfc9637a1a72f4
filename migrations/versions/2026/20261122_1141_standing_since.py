"""Start of a GPU's present standing: the first part of a probation is for reclaimable tiers alone."""

from typing import Final

from alembic import op

revision = "20261122_1141"
down_revision = "20261122_1140"
branch_labels = None
depends_on = None

ADD: Final = """
ALTER TABLE gpus ADD COLUMN standing_since timestamptz;
UPDATE gpus SET standing_since = newest.at
FROM (SELECT gpu_uuid, max(at) AS at FROM gpu_standing_changes GROUP BY gpu_uuid) AS newest
WHERE newest.gpu_uuid = gpus.uuid;
"""
REMOVE: Final = "ALTER TABLE gpus DROP COLUMN standing_since;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
