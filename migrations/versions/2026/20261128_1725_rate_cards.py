"""Rate cards: versions of the document that prices GPU time."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261128_1725"
down_revision = "20261128_1721"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rate_versions",
        sa.Column("version", sa.Integer(), sa.Identity(always=True), nullable=False),
        sa.Column("document", postgresql.JSONB(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_rate_versions")),
    )
    only = sa.text("is_active")
    op.create_index("uq_rate_versions_active", "rate_versions", ["is_active"], unique=True, postgresql_where=only)


def downgrade() -> None:
    op.drop_table("rate_versions")
