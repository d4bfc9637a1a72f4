"""The newest jobs of all tenants, by the page."""

from typing import Final

from alembic import op

revision = "20261121_0419"
down_revision = "20261121_0418"
branch_labels = None
depends_on = None

UP: Final = """
CREATE INDEX ix_jobs_newest ON jobs (created_at DESC, id DESC);
"""

DOWN: Final = """
DROP INDEX ix_jobs_newest;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
