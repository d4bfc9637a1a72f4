"""Index of the allocations of a GPU, the newest first; the taint also needs the job on it when a fault began."""

from typing import Final

from alembic import op

revision = "20261121_0418"
down_revision = "20261121_0417"
branch_labels = None
depends_on = None

UP: Final = """
CREATE INDEX ix_allocation_gpus_gpu_uuid_allocation_id ON allocation_gpus (gpu_uuid, allocation_id);
"""

DOWN: Final = """
DROP INDEX ix_allocation_gpus_gpu_uuid_allocation_id;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
