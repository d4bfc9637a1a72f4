"""Alembic's entry: each migration in its own transaction, all behind one lock, so two processes may migrate at once.

A backfill after an ALTER keeps its table locked until its transaction ends. With one transaction for all revisions, an
upgrade over several would hold the locks of the first until the last has filled its columns.
"""

import time
from typing import Final

from alembic import context
from sqlalchemy import Connection, text

from muster.db.engine import NO_LIMITS, make_engine
from muster.db.models import Base

_LOCK_KEY: Final = 0x6D757374_6D696772  # "must", "migr"
_PAUSE_S: Final = 0.1


def _migrate(connection: Connection) -> None:
    # The lock ends with the connection, which is closed after the migrations, or by a process that dies in them.
    while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK_KEY}):
        connection.rollback()  # a statement that waits here would hold up an index that is made concurrently
        time.sleep(_PAUSE_S)
    connection.commit()
    context.configure(connection=connection, target_metadata=Base.metadata, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


def _run() -> None:
    given = context.config.attributes.get("connection")
    if isinstance(given, Connection):
        _migrate(given)
        return
    url = context.config.get_main_option("sqlalchemy.url")
    if not url:
        raise SystemExit("no database: call muster.db.migrate, or set sqlalchemy.url in alembic.ini for a trial")
    engine = make_engine(url, application_name="muster migrate", limits=NO_LIMITS)
    try:
        with engine.connect() as connection:
            _migrate(connection)
    finally:
        engine.dispose()


_run()
