"""The lease of the process that leads, by term, and when each loop of the control plane last advanced.

The lock that the release before takes shows that a process exists, not that it advances. That release goes on taking
it: two schedulers are safe.
"""

from typing import Final

from alembic import op

revision = "20261127_1030"
down_revision = "20261127_1020"
branch_labels = None
depends_on = None

ADD: Final = """
CREATE TABLE leader_leases (
    name text NOT NULL,
    holder text NOT NULL,
    term bigint NOT NULL,
    taken_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT pk_leader_leases PRIMARY KEY (name),
    CONSTRAINT ck_leader_leases_term CHECK (term > 0)
);
CREATE FUNCTION require_lead(wanted_name text, wanted_term bigint) RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
    IF NOT EXISTS (SELECT FROM leader_leases WHERE name = wanted_name AND term = wanted_term) THEN
        RAISE EXCEPTION USING
            MESSAGE = format('%s: term %s has ended', wanted_name, wanted_term),
            ERRCODE = 'check_violation', CONSTRAINT = 'leader_leases_lead', TABLE = 'leader_leases';
    END IF;
END $body$;

CREATE TABLE loop_progress (
    loop text NOT NULL,
    instance text NOT NULL,
    component text NOT NULL,
    host text NOT NULL,
    advanced_at timestamp with time zone NOT NULL,
    reported_at timestamp with time zone NOT NULL,
    limit_s double precision NOT NULL,
    CONSTRAINT pk_loop_progress PRIMARY KEY (loop, instance),
    CONSTRAINT ck_loop_progress_limit_s CHECK (limit_s > 0)
);
"""
REMOVE: Final = """
DROP TABLE loop_progress;
DROP FUNCTION require_lead(text, bigint);
DROP TABLE leader_leases;
"""


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
