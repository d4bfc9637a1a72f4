"""Repairs that the agent of a host does: the verb, the time of its order, and the cordon that keeps the node free."""

from typing import Final

from alembic import op

revision = "20261122_1143"
down_revision = "20261122_1142"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE repairs
    DROP CONSTRAINT ck_repairs_action,
    ADD CONSTRAINT ck_repairs_action CHECK (
        action IN ('reset', 'driver_reload', 'reboot', 'power_cycle', 'field_diagnosis', 'swap', 'other')
    ),
    ADD COLUMN verb text,
    ADD COLUMN taken_at timestamptz,
    ADD COLUMN taken_boot_id text,
    ADD COLUMN cordon_id text,
    ADD CONSTRAINT ck_repairs_verb CHECK (verb IN ('gpu_reset', 'driver_reload', 'reboot', 'diagnosis')),
    ADD CONSTRAINT ck_repairs_taken CHECK ((taken_at IS NULL) = (taken_boot_id IS NULL)),
    ADD CONSTRAINT ck_repairs_taken_by_agent CHECK (taken_at IS NULL OR verb IS NOT NULL),
    ADD CONSTRAINT fk_repairs_cordon_id FOREIGN KEY (cordon_id) REFERENCES cordons (id);
"""

DOWN: Final = """
UPDATE repairs SET action = 'other' WHERE action = 'driver_reload';
ALTER TABLE repairs
    DROP CONSTRAINT ck_repairs_action,
    ADD CONSTRAINT ck_repairs_action
        CHECK (action IN ('reset', 'reboot', 'power_cycle', 'field_diagnosis', 'swap', 'other')),
    DROP COLUMN verb,
    DROP COLUMN taken_at,
    DROP COLUMN taken_boot_id,
    DROP COLUMN cordon_id;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
