"""A number for each job, by which hosts choose the user that its programs run as."""

from typing import Final

from alembic import op

revision = "20261122_0441"
down_revision = "20261122_0424"
branch_labels = None
depends_on = None

UP: Final = (
    "ALTER TABLE jobs ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY NOT NULL,"
    " ADD CONSTRAINT uq_jobs_number UNIQUE (number);"
)
DOWN: Final = "ALTER TABLE jobs DROP COLUMN number;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
