"""A fresh cluster's fences begin anywhere, since the port at which a gang's ranks meet follows from its fence.

Two clusters whose hosts share a machine, as two local stacks or two test runs do, gave the same fences in the same
order and so the same ports: the ranks of one gang met those in another, or waited without end.
"""

from typing import Final

from alembic import op

revision = "20261123_1101"
down_revision = "20261123_0943"
branch_labels = None
depends_on = None

UP: Final = """
UPDATE cluster SET fence_serial = floor(random() * 10000)::bigint WHERE fence_serial = 0;
"""
"""As many as there are ports. A cluster that has given a fence continues from it."""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    """Fences only grow."""
