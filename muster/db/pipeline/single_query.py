"""One statement by itself, through the driver: a snapshot of its own, in no transaction, for one round trip.

SQLAlchemy's own part of so short a question is more than the driver's; the query of every request takes this path.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from muster.db.pipeline.pg_pipeline import Connection, StatementError


def query_once(engine: Engine, statement: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
    """Run one statement that only reads, and return its rows as named tuples.

    ``statement`` has the driver's parameter style (``%(name)s``).

    Raises:
        sqlalchemy.exc.DBAPIError: as SQLAlchemy would; a broken connection returns to no pool.
        sqlalchemy.exc.TimeoutError: every connection is in use.
    """
    lent = None
    try:
        lent = engine.raw_connection()
        return _queried(lent.driver_connection, statement, parameters)
    except (psycopg.Error, StatementError) as failed:
        error = failed.error if isinstance(failed, StatementError) else failed
        is_gone = lent is None or _is_gone(lent.driver_connection)
        raise DBAPIError.instance(statement, None, error, psycopg.Error, connection_invalidated=is_gone) from error
    finally:
        if lent is not None:
            if _is_gone(lent.driver_connection):
                lent.invalidate()
            lent.close()


def _queried(driver: Any, statement: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
    if not isinstance(driver, Connection):
        raise TypeError("the engine's driver is psycopg 3, by db.exchanges.Connection")
    (rows,) = driver.exchange([(statement, parameters)])
    return rows


def _is_gone(driver: Any) -> bool:
    return driver is None or bool(driver.closed or driver.broken)
