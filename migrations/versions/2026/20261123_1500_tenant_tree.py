"""Tenants under tenants: a team is under its department, and has a weight among its siblings."""

from typing import Final

from alembic import op

revision = "20261123_1500"
down_revision = "20261123_1201"
branch_labels = None
depends_on = None

ADD: Final = """
ALTER TABLE tenants
    ADD COLUMN parent_id text,
    ADD COLUMN weight double precision NOT NULL DEFAULT 1,
    ADD CONSTRAINT fk_tenants_parent_id FOREIGN KEY (parent_id) REFERENCES tenants (id),
    ADD CONSTRAINT ck_tenants_parent CHECK (parent_id <> id),
    ADD CONSTRAINT ck_tenants_weight CHECK (weight > 0 AND weight <= 1000000);
CREATE INDEX ix_tenants_parent_id ON tenants (parent_id);
"""
REMOVE: Final = """
DROP INDEX ix_tenants_parent_id;
ALTER TABLE tenants DROP COLUMN parent_id, DROP COLUMN weight;
"""


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
