"""Evidence has a state, typed times and the reasons for which it is suppressed, apart from its readings.

The release before states them by keys in ``values`` and runs next to this one for a while. So these keys stay for one
release, and a trigger derives the columns from them, whichever release writes a row.
"""

from typing import Final

from alembic import op
from sqlalchemy import Text, column, table

revision = "20261126_1340"
down_revision = "20261125_0317"
branch_labels = None
depends_on = None

EDGES: Final = """
    PENDING: ACTIVE LAPSED SUPPRESSED SUSPENDED DISMISSED
    LAPSED: PENDING SUPPRESSED SUSPENDED DISMISSED
    ACTIVE: CLOSED SUPPRESSED SUSPENDED DISMISSED
    CLOSED: ACTIVE SUPPRESSED SUSPENDED DISMISSED
    SUPPRESSED: PENDING ACTIVE SUSPENDED DISMISSED
    SUSPENDED: PENDING LAPSED ACTIVE CLOSED SUPPRESSED DISMISSED
"""
"""Origin: targets, as published with this version. A test holds it equal to ``muster.domain.states``."""

STATE_EDGES: Final = table("state_edges", column("machine", Text), column("origin", Text), column("target", Text))

COLUMNS: Final = """
ALTER TABLE evidence
    ADD COLUMN state text DEFAULT 'ACTIVE' NOT NULL CONSTRAINT ck_evidence_state CHECK (
        state IN ('PENDING', 'LAPSED', 'ACTIVE', 'CLOSED', 'SUPPRESSED', 'SUSPENDED', 'DISMISSED')
    ),
    ADD COLUMN suppressed_by jsonb DEFAULT '[]'::jsonb NOT NULL,
    ADD COLUMN weighs_from_at timestamptz,
    ADD COLUMN boot_mark bigint,
    ADD COLUMN outlasted_at timestamptz,
    ADD COLUMN closed_at timestamptz,
    ADD COLUMN reopened_at timestamptz,
    ADD CONSTRAINT ck_evidence_pending CHECK (boot_mark IS NULL OR weighs_from_at IS NOT NULL);
"""

DERIVED: Final = """
CREATE FUNCTION time_in(told jsonb, key text) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $body$
    SELECT to_timestamp(floor((told ->> key)::double precision) / 1000)
$body$;

CREATE FUNCTION derive_evidence_state() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    told jsonb = NEW."values";
BEGIN
    NEW.suppressed_by = COALESCE((
        SELECT jsonb_agg(known.reason ORDER BY known.place)
        FROM unnest(ARRAY[
            'shadow', 'warm_up', 'maintenance', 'superseded', 'follows', 'overruled_by_nvml', 'overruled_by_xid_154'
        ]) WITH ORDINALITY AS known (reason, place)
        WHERE told ? known.reason
    ), '[]'::jsonb);
    NEW.weighs_from_at = time_in(told, 'weighs_from_ms');
    NEW.boot_mark = CASE WHEN told ? 'weighs_from_ms' THEN (told ->> 'told_in_boot')::double precision::bigint END;
    NEW.outlasted_at = time_in(told, 'outlasted_at_ms');
    NEW.closed_at = time_in(told, 'closed_at_ms');
    NEW.reopened_at = time_in(told, 'back_at_ms');
    NEW.state = CASE
        WHEN NEW.dismissed_at IS NOT NULL THEN 'DISMISSED'
        WHEN NEW.is_suspended THEN 'SUSPENDED'
        WHEN NEW.suppressed_by <> '[]'::jsonb THEN 'SUPPRESSED'
        WHEN NEW.weighs_from_at IS NOT NULL AND NEW.closed_at IS NOT NULL THEN 'LAPSED'
        WHEN NEW.weighs_from_at IS NOT NULL THEN 'PENDING'
        WHEN NEW.closed_at IS NOT NULL THEN 'CLOSED'
        ELSE 'ACTIVE'
    END;
    RETURN NEW;
END $body$;

CREATE TRIGGER derive_state BEFORE INSERT OR UPDATE ON evidence FOR EACH ROW
    EXECUTE FUNCTION derive_evidence_state();
-- All else is ACTIVE as it stands. The table is locked, so as few rows as possible are written.
UPDATE evidence SET state = state
WHERE dismissed_at IS NOT NULL OR is_suspended OR "values" ?| ARRAY[
    'shadow', 'warm_up', 'maintenance', 'superseded', 'follows', 'overruled_by_nvml', 'overruled_by_xid_154',
    'weighs_from_ms', 'outlasted_at_ms', 'closed_at_ms', 'back_at_ms'
];
"""

GUARD: Final = """
CREATE TRIGGER listed_edges_only BEFORE UPDATE ON evidence FOR EACH ROW
    WHEN (NEW.state IS DISTINCT FROM OLD.state)
    EXECUTE FUNCTION refuse_unlisted_edge('evidence', 'state');
"""
"""PostgreSQL runs it after ``derive_state``, by the order of the names."""

DOWN: Final = """
DROP TRIGGER listed_edges_only ON evidence;
DROP TRIGGER derive_state ON evidence;
DROP FUNCTION derive_evidence_state();
DROP FUNCTION time_in(jsonb, text);
DELETE FROM state_edges WHERE machine = 'evidence';
ALTER TABLE evidence
    DROP CONSTRAINT ck_evidence_pending,
    DROP COLUMN state,
    DROP COLUMN suppressed_by,
    DROP COLUMN weighs_from_at,
    DROP COLUMN boot_mark,
    DROP COLUMN outlasted_at,
    DROP COLUMN closed_at,
    DROP COLUMN reopened_at;
"""
"""The keys in ``values`` hold all that the columns held."""


def listed_edges() -> list[dict[str, str]]:
    """Return every edge as a row of ``state_edges``."""
    lines = [line.split(":") for line in EDGES.strip().splitlines()]
    return [
        {"machine": "evidence", "origin": origin.strip(), "target": target}
        for origin, onward in lines
        for target in onward.split()
    ]


def upgrade() -> None:
    op.bulk_insert(STATE_EDGES, listed_edges())
    op.execute(COLUMNS)
    op.execute(DERIVED)
    op.execute(GUARD)


def downgrade() -> None:
    op.execute(DOWN)
