"""Give jobs a request that is read without their program, and bounds for what a tenant may have open."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261127_1010"
down_revision = "20261127_0510"
branch_labels = None
depends_on = None

_OPEN = "state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')"


def upgrade() -> None:
    op.create_table(
        "tenant_submissions",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("remaining", sa.Double(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_tenant_submissions"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_tenant_submissions_tenant_id"),
    )
    op.add_column("jobs", sa.Column("request", postgresql.JSONB(), nullable=True))
    op.add_column("jobs", sa.Column("labels", postgresql.JSONB(), nullable=True))
    op.add_column("jobs", sa.Column("spec_bytes", sa.Integer(), nullable=True))
    op.create_index("ix_jobs_open", "jobs", ["tenant_id"], postgresql_where=sa.text(_OPEN))


def downgrade() -> None:
    op.drop_index("ix_jobs_open", table_name="jobs")
    op.drop_column("jobs", "spec_bytes")
    op.drop_column("jobs", "labels")
    op.drop_column("jobs", "request")
    op.drop_table("tenant_submissions")
