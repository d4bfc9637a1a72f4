"""The hosts of an attempt are checked a statement at a time: two foreign keys a host were two thirds of their write.

The key to a node also wrote into the node's row, which its heartbeats write all the time.
"""

from typing import Final

from alembic import op

revision = "20261124_2103"
down_revision = "20261124_2102"
branch_labels = None
depends_on = None

UP: Final = """
CREATE FUNCTION require_attempt_and_node() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    wanting text;
BEGIN
    SELECT attempt_id INTO wanting FROM (SELECT DISTINCT attempt_id FROM added) AS named
        WHERE NOT EXISTS (SELECT FROM attempts WHERE attempts.id = named.attempt_id) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            MESSAGE = format('%s: there is no attempt %s', TG_TABLE_NAME, wanting),
            ERRCODE = 'foreign_key_violation', CONSTRAINT = 'attempt_hosts_attempt', TABLE = TG_TABLE_NAME;
    END IF;
    SELECT node_id INTO wanting FROM added
        WHERE node_id NOT IN (SELECT id FROM nodes WHERE id = ANY(ARRAY(SELECT node_id FROM added)))
        LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            MESSAGE = format('%s: there is no node %s', TG_TABLE_NAME, wanting),
            ERRCODE = 'foreign_key_violation', CONSTRAINT = 'attempt_hosts_node', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $body$;

CREATE TRIGGER attempt_and_node_are_there AFTER INSERT ON attempt_hosts
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT
    EXECUTE FUNCTION require_attempt_and_node();
CREATE TRIGGER places_stay BEFORE UPDATE OF attempt_id, node_id ON attempt_hosts FOR EACH ROW
    WHEN ((NEW.attempt_id, NEW.node_id) <> (OLD.attempt_id, OLD.node_id))
    EXECUTE FUNCTION refuse('which hosts an attempt has never changes');
ALTER TABLE attempt_hosts
    DROP CONSTRAINT fk_attempt_hosts_attempt_id,
    DROP CONSTRAINT fk_attempt_hosts_node_id;
"""
DOWN: Final = """
ALTER TABLE attempt_hosts
    ADD CONSTRAINT fk_attempt_hosts_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id),
    ADD CONSTRAINT fk_attempt_hosts_node_id FOREIGN KEY (node_id) REFERENCES nodes (id);
DROP TRIGGER places_stay ON attempt_hosts;
DROP TRIGGER attempt_and_node_are_there ON attempt_hosts;
DROP FUNCTION require_attempt_and_node();
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
