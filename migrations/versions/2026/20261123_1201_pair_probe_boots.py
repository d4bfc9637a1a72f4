"""Boot in which a host's agent reported that it answers probes: after a reboot it may answer none."""

from typing import Final

from alembic import op

revision = "20261123_1201"
down_revision = "20261123_1101"
branch_labels = None
depends_on = None

UP: Final = "ALTER TABLE pair_probe_responders ADD COLUMN boot_id text;"
DOWN: Final = "ALTER TABLE pair_probe_responders DROP COLUMN boot_id;"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
