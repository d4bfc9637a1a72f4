"""The class of each job. Objectives are counted by the index of ended jobs, which the migration before has made."""

import sqlalchemy as sa
from alembic import op

revision = "20261128_1745"
down_revision = "20261128_1740"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("job_class", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "job_class")
