"""Attempts and nodes are never deleted, nor is a node renamed: the parts of hosts may check them once.

An attempt's id is kept by ``identity_stays`` already.
"""

from typing import Final

from alembic import op

revision = "20261124_2102"
down_revision = "20261124_2101"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TRIGGER attempts_stay BEFORE DELETE ON attempts FOR EACH ROW
    EXECUTE FUNCTION refuse('an attempt ends, and is never deleted');
CREATE TRIGGER attempts_stay_all BEFORE TRUNCATE ON attempts
    EXECUTE FUNCTION refuse('an attempt ends, and is never deleted');
CREATE TRIGGER nodes_stay BEFORE DELETE ON nodes FOR EACH ROW
    EXECUTE FUNCTION refuse('a node is never deleted');
CREATE TRIGGER nodes_stay_all BEFORE TRUNCATE ON nodes
    EXECUTE FUNCTION refuse('a node is never deleted');
CREATE TRIGGER ids_stay BEFORE UPDATE OF id ON nodes FOR EACH ROW
    WHEN (NEW.id <> OLD.id)
    EXECUTE FUNCTION refuse('the id of a node never changes');
"""
DOWN: Final = """
DROP TRIGGER ids_stay ON nodes;
DROP TRIGGER nodes_stay_all ON nodes;
DROP TRIGGER nodes_stay ON nodes;
DROP TRIGGER attempts_stay_all ON attempts;
DROP TRIGGER attempts_stay ON attempts;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
