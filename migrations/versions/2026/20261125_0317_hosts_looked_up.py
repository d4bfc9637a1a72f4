"""The hosts of an attempt are looked up, not compared with a list: for 512 hosts that was most of the check's cost.

PostgreSQL scans an array that a statement computes from its beginning for each row.
"""

from typing import Final

from alembic import op

revision = "20261125_0317"
down_revision = "20261125_0201"
branch_labels = None
depends_on = None

_FUNCTION: Final = """
CREATE OR REPLACE FUNCTION require_attempt_and_node() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    wanting text;
BEGIN
    SELECT attempt_id INTO wanting FROM (SELECT DISTINCT attempt_id FROM added) AS named
        WHERE NOT EXISTS (SELECT FROM attempts WHERE attempts.id = named.attempt_id) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            MESSAGE = format('%%s: there is no attempt %%s', TG_TABLE_NAME, wanting),
            ERRCODE = 'foreign_key_violation', CONSTRAINT = 'attempt_hosts_attempt', TABLE = TG_TABLE_NAME;
    END IF;
    SELECT node_id INTO wanting FROM added
        WHERE %s
        LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            MESSAGE = format('%%s: there is no node %%s', TG_TABLE_NAME, wanting),
            ERRCODE = 'foreign_key_violation', CONSTRAINT = 'attempt_hosts_node', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $body$;
"""
UP: Final = _FUNCTION % "NOT EXISTS (SELECT FROM nodes WHERE nodes.id = added.node_id)"
DOWN: Final = _FUNCTION % "node_id NOT IN (SELECT id FROM nodes WHERE id = ANY(ARRAY(SELECT node_id FROM added)))"


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
