"""Limits on what one attempt stores: how much it has stored so far. An attempt of before counts from here on."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "20261127_1020"
down_revision = "20261127_1015"
branch_labels = None
depends_on = None

MAKE: Final = """
CREATE TABLE attempt_usage (
    attempt_id text NOT NULL,
    kind text NOT NULL,
    subject text NOT NULL,
    amount bigint NOT NULL,
    num_dropped bigint NOT NULL,
    CONSTRAINT pk_attempt_usage PRIMARY KEY (attempt_id, kind, subject)
);
"""


def upgrade() -> None:
    op.execute(MAKE)
    op.add_column(
        "training_hosts", sa.Column("num_steps", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    )


def downgrade() -> None:
    op.drop_column("training_hosts", "num_steps")
    op.execute("DROP TABLE attempt_usage;")
