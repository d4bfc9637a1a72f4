"""Rename policy keys and event kinds to the words of the glossary.

Stored versions of the policy and stored events keep what they state. The guards of both tables are off meanwhile, in
this transaction alone.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from alembic import op
from sqlalchemy import text

revision = "20261126_1455"
down_revision = "20261126_1340"
branch_labels = None
depends_on = None


KEYS: Final = (
    (("dispatch",), "ring_again_s", "wake_again_s"),
    (("dispatch",), "look_from_nodes", "preflight_from_nodes"),
    (("dispatch",), "look_within_s", "preflight_within_s"),
    (("dispatch",), "dataset_look_s", "dataset_check_s"),
    (("training",), "hold_s", "fault_detection_s"),
    (("queue",), "passed_work_bound_s", "overtaken_work_bound_s"),
    (("health",), "node_hold", "rule_cordon"),
    (("health", "rule_cordon"), "rate_holds_s", "rate_fault_s"),
    (("health", "rule_cordon"), "moment_holds_s", "event_fault_s"),
    (("health", "rule_cordon"), "state_holds_s", "state_fault_s"),
    (("health", "detectors", "gpu_count"), "holds_node_from", "cordons_node_from"),
    (("health", "warm_up"), "words_wait_s", "log_wait_s"),
    (("health", "burn_in"), "asked_by", "requested_by"),
    (("health", "burn_in"), "asks_per_s", "polls_per_s"),
)
"""The sections around a key, its former name and its present one. A section's own rename precedes those within it."""
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
    _rename_keys(KEYS)
    _rename_events(EVENTS)


def downgrade() -> None:
    _rename_keys([(sections, key, former) for sections, former, key in reversed(KEYS)])
    _rename_events({kind: former for former, kind in EVENTS.items()})


def _rename_keys(keys: Iterable[tuple[tuple[str, ...], str, str]]) -> None:
    connection = op.get_bind()
    op.execute("ALTER TABLE policy_versions DISABLE TRIGGER versions_stay")
    for version, document in connection.execute(text("SELECT version, document::text FROM policy_versions")).all():
        renamed = json.loads(document)
        for sections, before, after in keys:
            section = _section(renamed, sections)
            if before in section:
                section[after] = section.pop(before)
        connection.execute(
            text("UPDATE policy_versions SET document = CAST(:document AS jsonb) WHERE version = :version"),
            {"document": json.dumps(renamed), "version": version},
        )
    op.execute("ALTER TABLE policy_versions ENABLE TRIGGER versions_stay")


def _section(document: dict[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    for name in sections:
        inner = document.get(name)
        document = inner if isinstance(inner, dict) else {}
    return document


def _rename_events(kinds: Mapping[str, str]) -> None:
    op.execute("ALTER TABLE events DISABLE TRIGGER facts_stay")
    for before, after in kinds.items():
        op.get_bind().execute(
            text("UPDATE events SET kind = :after WHERE kind = :before"), {"after": after, "before": before}
        )
    op.execute("ALTER TABLE events ENABLE TRIGGER facts_stay")
