"""A node keeps the RDMA ports that its host enrolled with, as it keeps its GPUs."""

from typing import Final

from alembic import op

revision = "20261124_1910"
down_revision = "20261123_1901"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE nodes ADD COLUMN rdma_ports jsonb NOT NULL DEFAULT '[]'"
DOWN: Final = "ALTER TABLE nodes DROP COLUMN rdma_ports"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
