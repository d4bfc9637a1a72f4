"""A job names the one that it is a copy of. Rows from before, and those that release 0.1.0 writes, name none."""

import sqlalchemy as sa
from alembic import op

revision = "20261128_1215"
down_revision = "20261128_1210"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("copied_from", sa.Text()))


def downgrade() -> None:
    op.drop_column("jobs", "copied_from")
