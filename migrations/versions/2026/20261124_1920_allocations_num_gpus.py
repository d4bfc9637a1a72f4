"""Number of GPUs of an allocation, so that a tenant's GPUs are a sum over its gangs and not over their GPUs."""

from typing import Final

from alembic import op

revision = "20261124_1920"
down_revision = "20261124_1911"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE allocations ADD COLUMN num_gpus integer CONSTRAINT ck_allocations_num_gpus CHECK (num_gpus > 0);
UPDATE allocations SET num_gpus = counted.num_gpus
FROM (SELECT allocation_id, count(*) AS num_gpus FROM allocation_gpus GROUP BY allocation_id) AS counted
WHERE allocations.id = counted.allocation_id AND allocations.state <> 'RELEASED';
CREATE TRIGGER num_gpus_stays BEFORE UPDATE OF num_gpus ON allocations FOR EACH ROW
    WHEN (OLD.num_gpus IS NOT NULL AND NEW.num_gpus IS DISTINCT FROM OLD.num_gpus)
    EXECUTE FUNCTION refuse('how many GPUs an allocation has never changes');
"""
DOWN: Final = """
DROP TRIGGER num_gpus_stays ON allocations;
ALTER TABLE allocations DROP COLUMN num_gpus;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
