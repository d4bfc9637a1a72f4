"""The events of one subject in the order of positions, from either end."""

from typing import Final

from alembic import op

revision = "20261121_0422"
down_revision = "20261121_0421"
branch_labels = None
depends_on = None

UP: Final = """
DROP INDEX ix_events_subject;
CREATE INDEX ix_events_subject ON events (subject_id, position);
"""

DOWN: Final = """
DROP INDEX ix_events_subject;
CREATE INDEX ix_events_subject ON events (subject_type, subject_id, serial);
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
