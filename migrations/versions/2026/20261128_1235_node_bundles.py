"""Which bundles each node holds, so that a job goes where its bundle is if nothing else decides."""

import sqlalchemy as sa
from alembic import op

revision = "20261128_1235"
down_revision = "20261128_1230"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "node_bundles",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("octet_length(digest) = 32", name=op.f("ck_node_bundles_digest")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_node_bundles_node_id"),
        sa.PrimaryKeyConstraint("node_id", "tenant_id", "digest"),
    )
    op.create_index(op.f("ix_node_bundles_digest"), "node_bundles", ["digest"])


def downgrade() -> None:
    op.drop_table("node_bundles")
