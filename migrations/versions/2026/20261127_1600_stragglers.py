"""Windows of own compute by rank, and verdicts that grow and end: a straggler stands while it is slow."""

from typing import Final

from alembic import op

revision = "20261127_1600"
down_revision = "20261127_1530"
branch_labels = None
depends_on = None

UP: Final = """
ALTER TABLE training_ranks
    ADD COLUMN windows jsonb,
    ADD COLUMN open_window jsonb,
    ADD COLUMN windows_at timestamptz;
ALTER TABLE verdicts
    ADD COLUMN last_step bigint,
    ADD COLUMN ended_at timestamptz,
    DROP CONSTRAINT ck_verdicts_reaction,
    ADD CONSTRAINT ck_verdicts_reaction CHECK (reaction IN ('restart', 'hold', 'notify', 'swap', 'none'));
DROP INDEX uq_verdicts_attempt_id;
CREATE UNIQUE INDEX uq_verdicts_attempt_id ON verdicts (attempt_id, kind, step) WHERE kind <> 'straggler';
CREATE UNIQUE INDEX uq_verdicts_straggler ON verdicts (attempt_id, cause, ranks)
    WHERE kind = 'straggler' AND ended_at IS NULL;
CREATE INDEX ix_verdicts_attempt_id_id ON verdicts (attempt_id, id);
CREATE INDEX ix_verdicts_swaps ON verdicts (id)
    WHERE kind = 'straggler' AND reaction = 'swap' AND state = 'standing' AND ended_at IS NULL;
"""
DOWN: Final = """
DROP INDEX ix_verdicts_swaps;
DROP INDEX ix_verdicts_attempt_id_id;
DROP INDEX uq_verdicts_straggler;
DROP INDEX uq_verdicts_attempt_id;
DELETE FROM verdicts WHERE kind = 'straggler';
CREATE UNIQUE INDEX uq_verdicts_attempt_id ON verdicts (attempt_id, kind, step);
ALTER TABLE verdicts
    DROP COLUMN last_step,
    DROP COLUMN ended_at,
    DROP CONSTRAINT ck_verdicts_reaction,
    ADD CONSTRAINT ck_verdicts_reaction CHECK (reaction IN ('restart', 'hold', 'notify', 'none'));
ALTER TABLE training_ranks
    DROP COLUMN windows,
    DROP COLUMN open_window,
    DROP COLUMN windows_at;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
