"""Divide the output of jobs by day, so that retention drops a whole day and deletes no row; index what it deletes else.

The table as it is becomes the partition of all time until a day in a week. No row moves, and both releases read and
write ``log_chunks`` by its name. The check that bounds its rows is validated before, without a lock that writers wait
for; the exchange itself takes milliseconds. ``control.system.log_days`` makes and drops the days after that.

Without the exchange, the check would refuse all output in a week: it is dropped if the exchange fails.

Attempts are never deleted, so no foreign key checks them: with one, each new day would lock ``attempts``.
"""

from datetime import date, timedelta
from typing import Final

import sqlalchemy as sa
from alembic import op
from sqlalchemy.exc import DBAPIError

from muster.db.errors import LOCK_TIMEOUT, sqlstate
from muster.domain.errors import UnavailableError

revision = "20261127_1120"
down_revision = "20261127_1110"
branch_labels = None
depends_on = None

AS_IT_IS: Final = timedelta(days=7)
"""Time for which the table as it is takes rows: none may be beyond its end when the check is validated."""
_KEY: Final = "PRIMARY KEY (attempt_id, node_id, stream, byte_offset)"
_COLUMNS: Final = """
    attempt_id text NOT NULL,
    node_id text NOT NULL,
    stream text NOT NULL,
    byte_offset bigint NOT NULL,
    tenant_id text NOT NULL,
    job_id text NOT NULL,
    content bytea NOT NULL,
    received_at timestamptz NOT NULL,
"""
_NAMES: Final = "attempt_id, node_id, stream, byte_offset, tenant_id, job_id, content, received_at, position"
_IS_BOUNDED: Final = "SELECT EXISTS (SELECT FROM pg_constraint WHERE conname = 'ck_log_chunks_until')"
_UNBOUNDED: Final = "ALTER TABLE log_chunks DROP CONSTRAINT ck_log_chunks_until"
_BOUNDED: Final = """
ALTER TABLE log_chunks ADD CONSTRAINT ck_log_chunks_until CHECK (received_at < '{until} 00:00:00+00') NOT VALID
"""
_VALIDATED: Final = "ALTER TABLE log_chunks VALIDATE CONSTRAINT ck_log_chunks_until"
LOCK_TRIES: Final = 5
"""Tries to lock the table, each of 5 s: all that use the table wait behind one that waits."""
_EXCHANGE: Final = f"""
LOCK TABLE log_chunks IN ACCESS EXCLUSIVE MODE;
DO $body$
DECLARE
    next bigint;
BEGIN
    EXECUTE format('SELECT last_value + 1 FROM %s', pg_get_serial_sequence('log_chunks', 'position')) INTO next;
    ALTER TABLE log_chunks ALTER COLUMN position DROP IDENTITY;
    EXECUTE format('CREATE SEQUENCE log_chunks_position_seq START WITH %s', next);
END
$body$;
ALTER TABLE log_chunks DROP CONSTRAINT fk_log_chunks_attempt_id;
ALTER TABLE log_chunks RENAME CONSTRAINT pk_log_chunks TO pk_{{before}};
ALTER INDEX ix_log_chunks_job_id_position RENAME TO ix_{{before}}_job_id_position;
ALTER INDEX ix_log_chunks_received_at RENAME TO ix_{{before}}_received_at;
ALTER TABLE log_chunks RENAME TO {{before}};
CREATE TABLE log_chunks ({_COLUMNS}
    position bigint DEFAULT nextval('log_chunks_position_seq'::regclass) NOT NULL,
    CONSTRAINT ck_log_chunks_byte_offset CHECK (byte_offset >= 0)
) PARTITION BY RANGE (received_at);
ALTER SEQUENCE log_chunks_position_seq OWNED BY log_chunks.position;
CREATE INDEX ix_log_chunks_job_id_position ON log_chunks (job_id, position);
ALTER TABLE log_chunks ATTACH PARTITION {{before}} FOR VALUES FROM (MINVALUE) TO ('{{until}} 00:00:00+00');
CREATE TABLE log_chunks_default PARTITION OF log_chunks (CONSTRAINT pk_log_chunks_default {_KEY}) DEFAULT;
CREATE INDEX ix_log_chunks_default_received_at ON log_chunks_default (received_at);
"""  # noqa: S608  # of constants alone
# A row that release 0.1.0 stored again on another day is one row as before. What is stored meanwhile waits.
_WHOLE: Final = f"""
LOCK TABLE log_chunks IN SHARE ROW EXCLUSIVE MODE;
CREATE TABLE log_chunks_whole ({_COLUMNS}
    position bigint GENERATED ALWAYS AS IDENTITY,
    CONSTRAINT pk_log_chunks_whole {_KEY},
    CONSTRAINT ck_log_chunks_byte_offset CHECK (byte_offset >= 0)
);
INSERT INTO log_chunks_whole ({_NAMES}) OVERRIDING SYSTEM VALUE
    SELECT {_NAMES} FROM log_chunks ORDER BY position ON CONFLICT DO NOTHING;
DO $body$
BEGIN
    IF to_regclass('log_chunks_aside') IS NOT NULL THEN
        INSERT INTO log_chunks_whole ({_NAMES}) OVERRIDING SYSTEM VALUE
            SELECT {_NAMES} FROM log_chunks_aside ON CONFLICT DO NOTHING;
        DROP TABLE log_chunks_aside;
    END IF;
END
$body$;
SELECT setval(pg_get_serial_sequence('log_chunks_whole', 'position'), nextval('log_chunks_position_seq'));
DROP TABLE log_chunks;
ALTER TABLE log_chunks_whole RENAME TO log_chunks;
ALTER TABLE log_chunks RENAME CONSTRAINT pk_log_chunks_whole TO pk_log_chunks;
ALTER SEQUENCE log_chunks_whole_position_seq RENAME TO log_chunks_position_seq;
CREATE INDEX ix_log_chunks_job_id_position ON log_chunks (job_id, position);
CREATE INDEX ix_log_chunks_received_at ON log_chunks (received_at);
ALTER TABLE log_chunks ADD CONSTRAINT fk_log_chunks_attempt_id FOREIGN KEY (attempt_id) REFERENCES attempts (id);
"""  # noqa: S608  # of constants alone
_NOT_EXCHANGED: Final = (
    "log_chunks could not be divided by day: another transaction kept it locked. Nothing was changed but indexes. "
    "End long transactions on log_chunks, such as a backup's, and run the migration again"
)
_STILL_BOUND: Final = (
    "log_chunks could not be divided by day, and the check ck_log_chunks_until could not be dropped from it: "
    "in a week it refuses all output. Run the migration again, or drop the check by hand"
)
_GAPS: Final = "ix_telemetry_gaps_received_at"
_SIGNALS: Final = "ix_gpu_signals_received_at"
_PLACES: Final = "ix_telemetry_places_last_hour"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        _remove_indexes()
        op.create_index(_GAPS, "telemetry_gaps", ["received_at"], postgresql_concurrently=True)
        op.create_index(_PLACES, "telemetry_places", ["last_hour"], postgresql_concurrently=True)
        judged = sa.text("judged_at IS NOT NULL")
        op.create_index(_SIGNALS, "gpu_signals", ["received_at"], postgresql_where=judged, postgresql_concurrently=True)
        until = _end_of_the_present()
    try:
        with op.get_context().autocommit_block():
            _remove_bound()
            _locking(_BOUNDED.format(until=until))
            op.execute(_VALIDATED)
        _locking(_EXCHANGE.format(before=f"log_chunks_until_{until:%Y%m%d}", until=until), is_alone=False)
    except DBAPIError as fault:
        try:
            with op.get_context().autocommit_block():
                _remove_bound()
        except DBAPIError:
            raise UnavailableError(_STILL_BOUND, retry_after_s=60) from fault
        if sqlstate(fault) != LOCK_TIMEOUT:
            raise
        raise UnavailableError(_NOT_EXCHANGED, retry_after_s=60) from fault


def _remove_bound() -> None:
    if op.get_bind().scalar(sa.text(_IS_BOUNDED)):
        _locking(_UNBOUNDED)


def _locking(statements: str, *, is_alone: bool = True) -> None:
    """Run what locks the table. It waits for the lock briefly, some times. ``is_alone``: outside of a transaction."""
    connection = op.get_bind()
    for number in range(1, LOCK_TRIES + 1):
        try:
            if is_alone:
                op.execute("SET lock_timeout = '5s'")
                op.execute(statements)
            else:
                with connection.begin_nested():
                    op.execute("SET LOCAL lock_timeout = '5s'")
                    op.execute(statements)
        except DBAPIError as fault:
            if sqlstate(fault) != LOCK_TIMEOUT or number == LOCK_TRIES:
                raise
        else:
            return
        finally:
            if is_alone:
                op.execute("RESET lock_timeout")


def _end_of_the_present() -> date:
    """Return the first day of which the table as it is has no row: a week from now, or from its newest row."""
    newest = "SELECT (greatest(now(), (SELECT max(received_at) FROM log_chunks)) AT TIME ZONE 'UTC')::date"
    today: date = op.get_bind().execute(sa.text(newest)).scalar_one()
    return today + AS_IT_IS


def downgrade() -> None:
    op.execute(_WHOLE)
    with op.get_context().autocommit_block():
        _remove_indexes()


def _remove_indexes() -> None:
    for index, table in ((_SIGNALS, "gpu_signals"), (_PLACES, "telemetry_places"), (_GAPS, "telemetry_gaps")):
        op.drop_index(index, table_name=table, if_exists=True, postgresql_concurrently=True)
