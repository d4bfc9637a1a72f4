"""The key of an allocation's GPUs is their place in it: a placement writes them in that order, at one end of an index.

The key by GPU was as long as all history and touched a page of its own for each GPU, which was a third of a large
placement's commit. Released GPUs are found by an index that the commit leaves alone. A GPU stands once in an
allocation: among assigned GPUs by ``uq_allocation_gpus_taken``, among released ones by the index here. The assigned
GPUs of a node are found by the node's GPUs.
"""

from typing import Final

from alembic import op

revision = "20261124_2101"
down_revision = "20261124_1920"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE allocation_gpus
    DROP CONSTRAINT pk_allocation_gpus,
    DROP CONSTRAINT uq_allocation_gpus_allocation_id_node_rank_local_index,
    ADD CONSTRAINT pk_allocation_gpus PRIMARY KEY (allocation_id, node_rank, local_index);
CREATE UNIQUE INDEX uq_allocation_gpus_released ON allocation_gpus (gpu_uuid, allocation_id)
    WHERE state = 'RELEASED';
DROP INDEX ix_allocation_gpus_node_id_open;
"""
DOWN: Final = """
CREATE INDEX ix_allocation_gpus_node_id_open ON allocation_gpus (node_id) WHERE state <> 'RELEASED';
DROP INDEX uq_allocation_gpus_released;
ALTER TABLE allocation_gpus
    DROP CONSTRAINT pk_allocation_gpus,
    ADD CONSTRAINT pk_allocation_gpus PRIMARY KEY (gpu_uuid, allocation_id),
    ADD CONSTRAINT uq_allocation_gpus_allocation_id_node_rank_local_index
        UNIQUE (allocation_id, node_rank, local_index);
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
