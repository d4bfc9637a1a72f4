"""Events without compression, however long: to compress the 4,096 GPUs of a gang took 5 ms of its commit.

They are random digits, of which compression saves little; an event below 2 kB was never compressed.
"""

from typing import Final

from alembic import op

revision = "20261124_2104"
down_revision = "20261124_2103"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE events ALTER COLUMN payload SET STORAGE EXTERNAL"
DOWN: Final = "ALTER TABLE events ALTER COLUMN payload SET STORAGE EXTENDED"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
