"""Refusals of the database itself: unlisted edges, changed history, numbers that go back (I2, I21)."""

from typing import Final

from alembic import op
from sqlalchemy import Text, column, table

revision = "20261121_0406"
down_revision = "20261121_0405"
branch_labels = None
depends_on = None

EDGES: Final = {
    "job": """
        QUEUED: HELD ACTIVE CANCELLED FAILED
        HELD: QUEUED CANCELLED FAILED
        ACTIVE: RECOVERING SUCCEEDED FAILED HELD CANCELLED
        RECOVERING: ACTIVE QUEUED CANCELLED FAILED HELD
    """,
    "attempt": """
        PLACED: CLAIMING STOPPING LOST ENDED
        CLAIMING: RUNNING STOPPING LOST ENDED
        RUNNING: STOPPING LOST ENDED
        STOPPING: LOST ENDED
        LOST: PLACED CLAIMING RUNNING STOPPING ENDED
    """,
    "host_part": """
        UNCLAIMED: CLAIMED CLEAN
        CLAIMED: STARTED EXITED CLEAN
        STARTED: EXITED CLEAN
        EXITED: CLEAN
    """,
    "allocation": """
        HELD: CLEANING
        CLEANING: RELEASED
    """,
    "checkpoint": """
        WRITING: COMMITTED REJECTED TAINTED EXPIRED
        COMMITTED: VERIFIED REJECTED TAINTED EXPIRED
        VERIFIED: GOOD REJECTED TAINTED EXPIRED
        GOOD: REJECTED TAINTED EXPIRED
        REJECTED: EXPIRED
        TAINTED: EXPIRED
    """,
    "standing": """
        UNPROVEN: PROBATION QUARANTINED RETIRED
        PROBATION: HEALTHY SUSPECT QUARANTINED RETIRED
        HEALTHY: SUSPECT QUARANTINED RETIRED
        SUSPECT: PROBATION HEALTHY QUARANTINED RETIRED
        QUARANTINED: REPAIR PROBATION HEALTHY SUSPECT UNPROVEN RETIRED
        REPAIR: UNPROVEN QUARANTINED RETIRED
        RETIRED: UNPROVEN
    """,
}
"""Machine → origin: targets, as published with this version. A test holds it equal to ``muster.domain.states``."""

STATE_EDGES: Final = table("state_edges", column("machine", Text), column("origin", Text), column("target", Text))

MACHINES: Final = (
    ("jobs", "job", "state"),
    ("attempts", "attempt", "state"),
    ("attempt_hosts", "host_part", "state"),
    ("allocations", "allocation", "state"),
    ("allocation_gpus", "allocation", "state"),
    ("checkpoints", "checkpoint", "status"),
    ("gpus", "standing", "standing"),
)
"""Table, its machine, the column that holds its state."""

FUNCTIONS: Final = """
CREATE FUNCTION refuse_unlisted_edge() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    origin_state text := to_jsonb(OLD) ->> TG_ARGV[1];
    target_state text := to_jsonb(NEW) ->> TG_ARGV[1];
BEGIN
    IF NOT EXISTS (
        SELECT FROM state_edges AS edge
        WHERE edge.machine = TG_ARGV[0] AND edge.origin = origin_state AND edge.target = target_state
    ) THEN
        RAISE EXCEPTION USING
            MESSAGE = format('I21: %s: %s -> %s is not a listed edge', TG_ARGV[0], origin_state, target_state),
            ERRCODE = 'check_violation', CONSTRAINT = 'listed_edge', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $body$;

CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    RAISE EXCEPTION USING
        MESSAGE = format('%s: %s', TG_TABLE_NAME, TG_ARGV[0]),
        ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
END $body$;
"""

HISTORY: Final = """
CREATE TRIGGER fences_only_grow BEFORE UPDATE ON cluster FOR EACH ROW
    WHEN ((NEW.epoch, NEW.fence_serial) < (OLD.epoch, OLD.fence_serial))
    EXECUTE FUNCTION refuse('fences only grow (I2)');
CREATE TRIGGER positions_only_grow BEFORE UPDATE ON sequence_heads FOR EACH ROW
    WHEN (NEW.position < OLD.position)
    EXECUTE FUNCTION refuse('positions only grow');
CREATE TRIGGER versions_stay BEFORE UPDATE ON policy_versions FOR EACH ROW
    WHEN ((to_jsonb(NEW) - 'is_active') IS DISTINCT FROM (to_jsonb(OLD) - 'is_active'))
    EXECUTE FUNCTION refuse('a version of the policy never changes');
CREATE TRIGGER moves_stay BEFORE UPDATE ON gpu_standing_changes FOR EACH ROW
    EXECUTE FUNCTION refuse('a move that happened never changes');
CREATE TRIGGER identity_stays BEFORE UPDATE ON attempts FOR EACH ROW
    WHEN ((NEW.id, NEW.job_id, NEW.tenant_id, NEW.number, NEW.fence)
        IS DISTINCT FROM (OLD.id, OLD.job_id, OLD.tenant_id, OLD.number, OLD.fence))
    EXECUTE FUNCTION refuse('the identity and fence of an attempt never change (I2)');
CREATE TRIGGER end_stays BEFORE UPDATE ON attempts FOR EACH ROW
    WHEN (OLD.state = 'ENDED' AND (NEW.cause, NEW.proof, NEW.ended_at)
        IS DISTINCT FROM (OLD.cause, OLD.proof, OLD.ended_at))
    EXECUTE FUNCTION refuse('the end of an attempt never changes (I21)');
"""

TRACES: Final = """
CREATE TRIGGER born_without_position BEFORE INSERT ON events FOR EACH ROW
    WHEN (NEW.position IS NOT NULL)
    EXECUTE FUNCTION refuse('the sequencer alone gives positions');
CREATE TRIGGER facts_stay BEFORE UPDATE ON events FOR EACH ROW
    WHEN (OLD.position IS NOT NULL OR (to_jsonb(NEW) - 'position') IS DISTINCT FROM (to_jsonb(OLD) - 'position'))
    EXECUTE FUNCTION refuse('an event never changes');
CREATE TRIGGER born_unsealed BEFORE INSERT ON audit_entries FOR EACH ROW
    WHEN (NEW.position IS NOT NULL)
    EXECUTE FUNCTION refuse('the sealer alone seals');
CREATE TRIGGER entries_stay BEFORE UPDATE ON audit_entries FOR EACH ROW
    WHEN (OLD.position IS NOT NULL OR (to_jsonb(NEW) - '{position,prev_hash,hash}'::text[])
        IS DISTINCT FROM (to_jsonb(OLD) - '{position,prev_hash,hash}'::text[]))
    EXECUTE FUNCTION refuse('an audit entry never changes');
CREATE TRIGGER entries_are_kept BEFORE DELETE ON audit_entries FOR EACH ROW
    EXECUTE FUNCTION refuse('an audit entry is never deleted');
CREATE TRIGGER entries_are_kept_whole BEFORE TRUNCATE ON audit_entries
    EXECUTE FUNCTION refuse('an audit entry is never deleted');
"""

GUARDS: Final = {
    "cluster": ("fences_only_grow",),
    "sequence_heads": ("positions_only_grow",),
    "policy_versions": ("versions_stay",),
    "gpu_standing_changes": ("moves_stay",),
    "attempts": ("identity_stays", "end_stays"),
    "events": ("born_without_position", "facts_stay"),
    "audit_entries": ("born_unsealed", "entries_stay", "entries_are_kept", "entries_are_kept_whole"),
}


def listed_edges() -> list[dict[str, str]]:
    """Every edge as a row of ``state_edges``."""
    lines = [(machine, line.split(":")) for machine, text in EDGES.items() for line in text.strip().splitlines()]
    return [
        {"machine": machine, "origin": origin.strip(), "target": target}
        for machine, (origin, onward) in lines
        for target in onward.split()
    ]


def upgrade() -> None:
    op.bulk_insert(STATE_EDGES, listed_edges())
    op.execute(FUNCTIONS)
    for name, machine, state in MACHINES:
        op.execute(
            f"CREATE TRIGGER listed_edges_only BEFORE UPDATE ON {name} FOR EACH ROW"
            f" WHEN (NEW.{state} IS DISTINCT FROM OLD.{state})"
            f" EXECUTE FUNCTION refuse_unlisted_edge('{machine}', '{state}')"
        )
    op.execute(HISTORY)
    op.execute(TRACES)


def downgrade() -> None:
    for name, triggers in GUARDS.items():
        for trigger in triggers:
            op.execute(f"DROP TRIGGER {trigger} ON {name}")
    for name, _, _ in MACHINES:
        op.execute(f"DROP TRIGGER listed_edges_only ON {name}")
    op.execute("DROP FUNCTION refuse()")
    op.execute("DROP FUNCTION refuse_unlisted_edge()")
    op.execute("DELETE FROM state_edges")
