"""The residency rule of a tenant: the sites of its jobs and the stores of its data."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261128_1605"
down_revision = "20261128_1600"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("residency", postgresql.JSONB(), nullable=True))
    # There are few tenants, so that the lock is short; each plan and each commit asks for any rule.
    op.create_index("ix_tenants_residency", "tenants", ["id"], postgresql_where=sa.text("residency IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_tenants_residency", table_name="tenants")
    op.drop_column("tenants", "residency")
