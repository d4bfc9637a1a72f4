"""An elastic victim may release some of its hosts and continue with the others: its notice names their GPUs."""

from typing import Final

from alembic import op

revision = "20261123_1601"
down_revision = "20261123_1502"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE reclaims ADD COLUMN keeps jsonb
    CONSTRAINT ck_reclaims_keeps CHECK (keeps IS NULL OR jsonb_typeof(keeps) = 'array');
CREATE TRIGGER keeps_stays BEFORE UPDATE OF keeps ON reclaims FOR EACH ROW
    WHEN (NEW.keeps IS DISTINCT FROM OLD.keeps)
    EXECUTE FUNCTION refuse('a notice that was given never changes (I8)');
"""
DOWN: Final = """
DROP TRIGGER keeps_stays ON reclaims;
ALTER TABLE reclaims DROP COLUMN keeps;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
