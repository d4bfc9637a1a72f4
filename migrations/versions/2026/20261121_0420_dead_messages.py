"""Index of the messages that were abandoned: few among all that were sent, and counted at every view of them."""

from typing import Final

from alembic import op

revision = "20261121_0420"
down_revision = "20261121_0419"
branch_labels = None
depends_on = None

UP: Final = """
CREATE INDEX ix_outbox_dead ON outbox (id) WHERE dead_at IS NOT NULL;
"""

DOWN: Final = """
DROP INDEX ix_outbox_dead;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
