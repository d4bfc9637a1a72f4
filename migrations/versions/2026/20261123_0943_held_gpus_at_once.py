"""One check a statement for a placement's GPUs: three foreign keys a GPU were half of a large placement's commit.

The GPU exists and is on its node, and the allocation exists. None of these rows is ever deleted, so one check is
enough: no key has to be locked. The primary key also finds a GPU's holders, so its own index is dropped.
"""

from typing import Final

from alembic import op

revision = "20261123_0943"
down_revision = "20261123_0942"
branch_labels = None
depends_on = None

UP: Final = """
CREATE FUNCTION require_gpu_and_allocation() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    wanting text;
BEGIN
    SELECT gpu_uuid INTO wanting FROM added
        WHERE (gpu_uuid, node_id) NOT IN (
            SELECT uuid, node_id FROM gpus WHERE node_id = ANY(ARRAY(SELECT DISTINCT node_id FROM added))
        )
        LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            MESSAGE = format('%s: there is no GPU %s on that node', TG_TABLE_NAME, wanting),
            ERRCODE = 'foreign_key_violation', CONSTRAINT = 'allocation_gpus_gpu', TABLE = TG_TABLE_NAME;
    END IF;
    SELECT named.allocation_id INTO wanting FROM (SELECT DISTINCT allocation_id FROM added) AS named
        WHERE NOT EXISTS (SELECT FROM allocations WHERE allocations.id = named.allocation_id) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            MESSAGE = format('%s: there is no allocation %s', TG_TABLE_NAME, wanting),
            ERRCODE = 'foreign_key_violation', CONSTRAINT = 'allocation_gpus_allocation', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $body$;

CREATE TRIGGER gpu_and_allocation_are_there AFTER INSERT ON allocation_gpus
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT
    EXECUTE FUNCTION require_gpu_and_allocation();
CREATE TRIGGER places_stay BEFORE UPDATE OF allocation_id, gpu_uuid, node_id ON allocation_gpus FOR EACH ROW
    WHEN ((NEW.allocation_id, NEW.gpu_uuid, NEW.node_id) <> (OLD.allocation_id, OLD.gpu_uuid, OLD.node_id))
    EXECUTE FUNCTION refuse('which GPU an allocation has, and where, never changes');
ALTER TABLE allocation_gpus
    DROP CONSTRAINT fk_allocation_gpus_allocation_id,
    DROP CONSTRAINT fk_allocation_gpus_gpu_uuid,
    DROP CONSTRAINT fk_allocation_gpus_node_id,
    DROP CONSTRAINT pk_allocation_gpus,
    ADD CONSTRAINT pk_allocation_gpus PRIMARY KEY (gpu_uuid, allocation_id);
DROP INDEX ix_allocation_gpus_gpu_uuid_allocation_id;
"""
DOWN: Final = """
CREATE INDEX ix_allocation_gpus_gpu_uuid_allocation_id ON allocation_gpus (gpu_uuid, allocation_id);
ALTER TABLE allocation_gpus
    DROP CONSTRAINT pk_allocation_gpus,
    ADD CONSTRAINT pk_allocation_gpus PRIMARY KEY (allocation_id, gpu_uuid),
    ADD CONSTRAINT fk_allocation_gpus_allocation_id FOREIGN KEY (allocation_id) REFERENCES allocations (id),
    ADD CONSTRAINT fk_allocation_gpus_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid),
    ADD CONSTRAINT fk_allocation_gpus_node_id FOREIGN KEY (node_id) REFERENCES nodes (id);
DROP TRIGGER places_stay ON allocation_gpus;
DROP TRIGGER gpu_and_allocation_are_there ON allocation_gpus;
DROP FUNCTION require_gpu_and_allocation();
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
