"""An attempt may end because its last checkpoint could not be saved (``save_failed``)."""

from typing import Final

from alembic import op

revision = "20261127_1015"
down_revision = "20261127_1010"
branch_labels = None
depends_on = None

_BEFORE: Final = (
    "'succeeded', 'user_error', 'gpu_oom', 'host_oom', 'hang', 'nccl_timeout', 'diverged', 'gpu_fault', 'node_lost', "
    "'launch_failed', 'preflight_failed', 'reclaimed', 'evacuated', 'maintenance', 'walltime', 'budget', 'cancelled', "
    "'checkpoint_corrupt', "
)
_AFTER: Final = "'resize', 'hot_swap'"
CHECKS: Final = """
ALTER TABLE attempts
    DROP CONSTRAINT ck_attempts_cause,
    DROP CONSTRAINT ck_attempts_ending_cause,
    ADD CONSTRAINT ck_attempts_cause CHECK (cause IN ({causes})),
    ADD CONSTRAINT ck_attempts_ending_cause CHECK (ending_cause IN ({causes}));
"""
FORGET: Final = """
ALTER TABLE attempts DISABLE TRIGGER USER;
UPDATE attempts SET cause = 'user_error' WHERE cause = 'save_failed';
UPDATE attempts SET ending_cause = 'user_error' WHERE ending_cause = 'save_failed';
ALTER TABLE attempts ENABLE TRIGGER USER;
"""


def upgrade() -> None:
    op.execute(CHECKS.format(causes=f"{_BEFORE}'save_failed', {_AFTER}"))


def downgrade() -> None:
    op.execute(FORGET)  # the release before cannot read that cause; this is its reading of exit code 74
    op.execute(CHECKS.format(causes=_BEFORE + _AFTER))
