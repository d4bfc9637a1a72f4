"""A GPU is retired, never deleted or renamed: what holds it may look it up once instead of locking it by a key."""

from typing import Final

from alembic import op

revision = "20261123_0941"
down_revision = "20261123_0656"
branch_labels = None
depends_on = None

UP: Final = """
-- What this and the next two need, in the order in which a placement locks: it waits while it holds nothing.
LOCK TABLE gpus, nodes, allocations, allocation_gpus IN ACCESS EXCLUSIVE MODE;
CREATE TRIGGER gpus_stay BEFORE DELETE ON gpus FOR EACH ROW
    EXECUTE FUNCTION refuse('a GPU is retired, never deleted');
CREATE TRIGGER gpus_stay_all BEFORE TRUNCATE ON gpus
    EXECUTE FUNCTION refuse('a GPU is retired, never deleted');
CREATE TRIGGER uuids_stay BEFORE UPDATE OF uuid ON gpus FOR EACH ROW
    WHEN (NEW.uuid <> OLD.uuid)
    EXECUTE FUNCTION refuse('the UUID of a GPU never changes');
"""
DOWN: Final = """
DROP TRIGGER uuids_stay ON gpus;
DROP TRIGGER gpus_stay_all ON gpus;
DROP TRIGGER gpus_stay ON gpus;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
