"""Index of a tenant's past run times by job name, looked up for each pending job without a wall time."""

from typing import Final

from alembic import op

revision = "20261123_1502"
down_revision = "20261123_1501"
branch_labels = None
depends_on = None

ADD: Final = """
CREATE INDEX ix_jobs_succeeded ON jobs (tenant_id, name, finished_at DESC) WHERE state = 'SUCCEEDED';
"""
REMOVE: Final = "DROP INDEX ix_jobs_succeeded;"


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
