"""The newest step of an attempt with an unusual value: a checkpoint is good only so many steps after it."""

import sqlalchemy as sa
from alembic import op

revision = "20261127_1530"
down_revision = "20261127_1210"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("unusual_step", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("attempts", "unusual_step")
