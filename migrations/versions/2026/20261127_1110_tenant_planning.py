"""Give each tenant a count of the CPU time that its plans and dry runs may still take."""

import sqlalchemy as sa
from alembic import op

revision = "20261127_1110"
down_revision = "20261127_1040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tenant_planning",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("left_s", sa.Double(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_tenant_planning"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_tenant_planning_tenant_id"),
    )


def downgrade() -> None:
    op.drop_table("tenant_planning")
