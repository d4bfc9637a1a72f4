"""Audit entries by the page, newest first: of all, of one actor, of one action, about one subject."""

from typing import Final

from alembic import op

revision = "20261121_0417"
down_revision = "20261121_0416"
branch_labels = None
depends_on = None

UP: Final = """
CREATE INDEX ix_audit_entries_serial ON audit_entries (serial);
CREATE INDEX ix_audit_entries_actor ON audit_entries (actor, serial);
CREATE INDEX ix_audit_entries_action ON audit_entries (action, serial);
CREATE INDEX ix_audit_entries_subject_id ON audit_entries (subject_id, serial);
DROP INDEX ix_audit_entries_subject;
"""

DOWN: Final = """
CREATE INDEX ix_audit_entries_subject ON audit_entries (subject_type, subject_id, serial);
DROP INDEX ix_audit_entries_subject_id;
DROP INDEX ix_audit_entries_action;
DROP INDEX ix_audit_entries_actor;
DROP INDEX ix_audit_entries_serial;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
