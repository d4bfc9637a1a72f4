"""A quota also guarantees GPUs, and limits borrowed ones; it need not have a ceiling."""

from typing import Final

from alembic import op

revision = "20261123_1501"
down_revision = "20261123_1500"
branch_labels = None
depends_on = None

ADD: Final = """
ALTER TABLE quotas
    ADD COLUMN guaranteed_gpus integer NOT NULL DEFAULT 0,
    ADD COLUMN borrowable_gpus integer,
    ALTER COLUMN ceiling_gpus DROP NOT NULL,
    ADD CONSTRAINT ck_quotas_guaranteed_gpus CHECK (guaranteed_gpus >= 0 AND guaranteed_gpus <= ceiling_gpus),
    ADD CONSTRAINT ck_quotas_borrowable_gpus CHECK (borrowable_gpus >= 0);
"""
REMOVE: Final = """
DELETE FROM quotas WHERE ceiling_gpus IS NULL;
ALTER TABLE quotas
    DROP COLUMN guaranteed_gpus,
    DROP COLUMN borrowable_gpus,
    ALTER COLUMN ceiling_gpus SET NOT NULL;
"""


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
