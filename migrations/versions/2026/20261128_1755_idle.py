"""An attempt may be stopped because its GPUs do nothing, and has since when, and until when it may go on.

The checks are validated after their transaction: a scan of all attempts would lock them against each writer.
"""

from typing import Final

from alembic import op

revision = "20261128_1755"
down_revision = "20261128_1750"
branch_labels = None
depends_on = None

_CAUSES: Final = (
    "'succeeded', 'user_error', 'gpu_oom', 'host_oom', 'hang', 'nccl_timeout', 'diverged', 'corruption', "
    "'gpu_fault', 'node_lost', 'launch_failed', 'preflight_failed', 'reclaimed', 'evacuated', 'maintenance', "
    "'walltime', 'budget', 'cancelled', 'checkpoint_corrupt', 'save_failed', 'resize', 'hot_swap'"
)
_REASONS: Final = "'reclaim', 'cancel', 'evacuation', 'maintenance', 'walltime', 'budget', 'hot_swap', 'resize', 'hang'"
CHECKS: Final = """
ALTER TABLE attempts
    DROP CONSTRAINT ck_attempts_cause,
    DROP CONSTRAINT ck_attempts_ending_cause,
    DROP CONSTRAINT ck_attempts_stop_reason,
    ADD CONSTRAINT ck_attempts_cause CHECK (cause IN ({causes})) NOT VALID,
    ADD CONSTRAINT ck_attempts_ending_cause CHECK (ending_cause IN ({causes})) NOT VALID,
    ADD CONSTRAINT ck_attempts_stop_reason CHECK (stop_reason IN ({reasons})) NOT VALID;
ALTER TABLE stop_requests
    DROP CONSTRAINT ck_stop_requests_reason,
    ADD CONSTRAINT ck_stop_requests_reason CHECK (reason IN ({reasons})) NOT VALID;
"""
VALIDATED: Final = """
ALTER TABLE attempts VALIDATE CONSTRAINT ck_attempts_cause;
ALTER TABLE attempts VALIDATE CONSTRAINT ck_attempts_ending_cause;
ALTER TABLE attempts VALIDATE CONSTRAINT ck_attempts_stop_reason;
ALTER TABLE stop_requests VALIDATE CONSTRAINT ck_stop_requests_reason;
"""
COLUMNS: Final = """
ALTER TABLE attempts
    ADD COLUMN IF NOT EXISTS idle_since timestamptz,
    ADD COLUMN IF NOT EXISTS idle_stop_at timestamptz;
"""
DROPPED: Final = """
ALTER TABLE attempts DROP COLUMN IF EXISTS idle_stop_at, DROP COLUMN IF EXISTS idle_since;
"""
FORGET: Final = """
ALTER TABLE attempts DISABLE TRIGGER USER;
UPDATE attempts SET cause = 'budget' WHERE cause = 'idle';
UPDATE attempts SET ending_cause = 'budget' WHERE ending_cause = 'idle';
UPDATE attempts SET stop_reason = 'budget' WHERE stop_reason = 'idle';
ALTER TABLE attempts ENABLE TRIGGER USER;
UPDATE stop_requests SET reason = 'budget' WHERE reason = 'idle';
"""


def upgrade() -> None:
    op.execute(CHECKS.format(causes=f"{_CAUSES}, 'idle'", reasons=f"{_REASONS}, 'idle'"))
    op.execute(COLUMNS)
    _validate()


def downgrade() -> None:
    op.execute(FORGET)  # the release before cannot read them
    op.execute(CHECKS.format(causes=_CAUSES, reasons=_REASONS))
    op.execute(DROPPED)
    _validate()


def _validate() -> None:
    """Validate each check with the lock that only other changes of the table wait for."""
    with op.get_context().autocommit_block():
        for statement in VALIDATED.strip().splitlines():
            op.execute(statement)
