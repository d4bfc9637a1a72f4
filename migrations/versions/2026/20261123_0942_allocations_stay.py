"""An allocation is released, never deleted or renamed: its GPUs may check it once instead of by a key."""

from typing import Final

from alembic import op

revision = "20261123_0942"
down_revision = "20261123_0941"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TRIGGER allocations_stay BEFORE DELETE ON allocations FOR EACH ROW
    EXECUTE FUNCTION refuse('an allocation is released, never deleted');
CREATE TRIGGER allocations_stay_all BEFORE TRUNCATE ON allocations
    EXECUTE FUNCTION refuse('an allocation is released, never deleted');
CREATE TRIGGER ids_stay BEFORE UPDATE OF id ON allocations FOR EACH ROW
    WHEN (NEW.id <> OLD.id)
    EXECUTE FUNCTION refuse('the id of an allocation never changes');
"""
DOWN: Final = """
DROP TRIGGER ids_stay ON allocations;
DROP TRIGGER allocations_stay_all ON allocations;
DROP TRIGGER allocations_stay ON allocations;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
