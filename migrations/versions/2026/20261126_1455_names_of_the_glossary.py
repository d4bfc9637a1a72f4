"""Rename event kinds to the words of the glossary.

Stored events keep what they state. The guard of the table is off meanwhile, in this transaction alone. Stored versions
of the policy keep their former keys, which are read under their present names (``muster/domain/policy/former_keys``):
a server of the release before has to read them too, next to this one or after a way back.
"""

from collections.abc import Mapping
from typing import Final

from alembic import op
from sqlalchemy import text

revision = "20261126_1455"
down_revision = "20261126_1340"
branch_labels = None
depends_on = None

EVENTS: Final = {
    "job.look_asked": "job.preflight_requested",
    "job.look_given_up": "job.preflight_abandoned",
    "job.looked_at": "job.preflight_done",
    "job.reclaim_promised": "job.reclaim_held",
    "node.clearing": "node.maintenance_evacuation",
    "gpu.repair_taken": "gpu.repair_claimed",
    "checkpoint.pin_held": "checkpoint.pin_applied",
}


def upgrade() -> None:
    _rename_events(EVENTS)


def downgrade() -> None:
    _rename_events({kind: former for former, kind in EVENTS.items()})


def _rename_events(kinds: Mapping[str, str]) -> None:
    op.execute("ALTER TABLE events DISABLE TRIGGER facts_stay")
    for before, after in kinds.items():
        op.get_bind().execute(
            text("UPDATE events SET kind = :after WHERE kind = :before"), {"after": after, "before": before}
        )
    op.execute("ALTER TABLE events ENABLE TRIGGER facts_stay")
