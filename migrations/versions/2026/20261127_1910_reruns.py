"""A verdict keeps the re-runs of its steps and their burn-in, and an attempt may end as ``corruption``.

The checks of causes are validated after their transaction: a scan of all attempts would lock them against each writer.
A try that failed in between is repeated, so each statement before may find its work done.
"""

from typing import Final

from alembic import op

revision = "20261127_1910"
down_revision = "20261127_1900"
branch_labels = None
depends_on = None

_BEFORE: Final = "'succeeded', 'user_error', 'gpu_oom', 'host_oom', 'hang', 'nccl_timeout', 'diverged', "
_AFTER: Final = (
    "'gpu_fault', 'node_lost', 'launch_failed', 'preflight_failed', 'reclaimed', 'evacuated', 'maintenance', "
    "'walltime', 'budget', 'cancelled', 'checkpoint_corrupt', 'save_failed', 'resize', 'hot_swap'"
)
CHECKS: Final = """
ALTER TABLE attempts
    DROP CONSTRAINT ck_attempts_cause,
    DROP CONSTRAINT ck_attempts_ending_cause,
    ADD CONSTRAINT ck_attempts_cause CHECK (cause IN ({causes})) NOT VALID,
    ADD CONSTRAINT ck_attempts_ending_cause CHECK (ending_cause IN ({causes})) NOT VALID;
"""
VALIDATED: Final = """
ALTER TABLE attempts VALIDATE CONSTRAINT ck_attempts_cause;
ALTER TABLE attempts VALIDATE CONSTRAINT ck_attempts_ending_cause;
"""
COLUMNS: Final = """
ALTER TABLE verdicts
    ADD COLUMN IF NOT EXISTS rerun jsonb,
    ADD COLUMN IF NOT EXISTS burn_in_id text,
    ADD COLUMN IF NOT EXISTS burn_in_note text,
    ADD COLUMN IF NOT EXISTS burn_in_next_at timestamptz;
ALTER TABLE attempts ADD COLUMN IF NOT EXISTS charged_from timestamptz;
ALTER TABLE burn_ins ADD COLUMN IF NOT EXISTS operation jsonb;
CREATE INDEX IF NOT EXISTS ix_verdicts_burn_in_next_at ON verdicts (burn_in_next_at)
    WHERE burn_in_next_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS ix_verdicts_tenant_id_burn_in_id ON verdicts (tenant_id, burn_in_id)
    WHERE burn_in_id IS NOT NULL;
"""
INDEXED: Final = """
CREATE INDEX CONCURRENTLY ix_attempts_partly_free ON attempts (tenant_id, placed_at) WHERE charged_from IS NOT NULL
"""
UNINDEXED: Final = "DROP INDEX CONCURRENTLY IF EXISTS ix_attempts_partly_free"
DROPPED: Final = """
DROP INDEX IF EXISTS ix_verdicts_tenant_id_burn_in_id, ix_verdicts_burn_in_next_at;
ALTER TABLE burn_ins DROP COLUMN IF EXISTS operation;
ALTER TABLE attempts DROP COLUMN IF EXISTS charged_from;
ALTER TABLE verdicts
    DROP COLUMN IF EXISTS burn_in_next_at,
    DROP COLUMN IF EXISTS burn_in_note,
    DROP COLUMN IF EXISTS burn_in_id,
    DROP COLUMN IF EXISTS rerun;
"""
FORGET: Final = """
ALTER TABLE attempts DISABLE TRIGGER USER;
UPDATE attempts SET cause = 'gpu_fault' WHERE cause = 'corruption';
UPDATE attempts SET ending_cause = 'gpu_fault' WHERE ending_cause = 'corruption';
ALTER TABLE attempts ENABLE TRIGGER USER;
"""


def upgrade() -> None:
    op.execute(CHECKS.format(causes=f"{_BEFORE}'corruption', {_AFTER}"))
    op.execute(COLUMNS)
    _validate()
    with op.get_context().autocommit_block():
        op.execute(UNINDEXED)  # an earlier try that failed may have left an invalid one
        op.execute(INDEXED)


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(UNINDEXED)
    op.execute(FORGET)  # the release before cannot read that cause; this is its reading of exit code 16
    op.execute(CHECKS.format(causes=_BEFORE + _AFTER))
    op.execute(DROPPED)
    _validate()


def _validate() -> None:
    """Validate each check with the lock that only other changes of the table wait for."""
    with op.get_context().autocommit_block():
        for statement in VALIDATED.strip().splitlines():
            op.execute(statement)
