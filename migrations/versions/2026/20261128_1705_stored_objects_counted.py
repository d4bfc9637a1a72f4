"""How often the store has taken each object: what was found lost is not marked so if it was stored again since."""

from alembic import op

revision = "20261128_1705"
down_revision = "20261128_1700"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE stored_objects ADD COLUMN num_stored integer DEFAULT 0 NOT NULL")


def downgrade() -> None:
    op.execute("ALTER TABLE stored_objects DROP COLUMN num_stored")
