"""Attributes of GPUs that agents report beyond enrolment: firmware, CUDA, links, network, NVLink domain."""

from typing import Final

from alembic import op

revision = "20261123_0210"
down_revision = "20261122_1143"
branch_labels = None
depends_on = None

ADD: Final = "ALTER TABLE gpus ADD COLUMN attributes jsonb NOT NULL DEFAULT '{}';"
REMOVE: Final = "ALTER TABLE gpus DROP COLUMN attributes;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
