"""Several statements sent in one go: as many answers for one round trip, BEGIN included where none was sent yet.

Each still runs after the one before it and sees what was committed when it begins. SQLAlchemy waits for each answer,
so these use the driver's own connection, within the session's transaction.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from muster.db.pipeline.pg_pipeline import COMMIT, Connection, Query, StatementError, begin_statement


def query_together(session: Session, *queries: Query, commit: bool = False) -> list[Sequence[Any]]:
    """Run statements in one round trip, and return the rows of each as named tuples.

    With ``commit`` COMMIT follows the last one.

    Raises:
        sqlalchemy.exc.DBAPIError: the first that failed; later ones were not run, and nothing is committed.
    """
    connection = session.connection()
    driver = connection.connection.driver_connection
    if not isinstance(driver, Connection):
        raise TypeError("the engine's driver is psycopg 3, by db.exchanges.Connection")
    begin = begin_statement(driver)
    before, after = (() if begin is None else (begin,)), ((COMMIT,) if commit else ())
    try:
        rows = driver.exchange([*before, *queries, *after])
    except StatementError as failed:
        is_gone = driver.closed  # the server is no primary any more
        if is_gone:
            connection.invalidate(failed.error)
        raise DBAPIError.instance(
            failed.statement, None, failed.error, psycopg.Error, connection_invalidated=is_gone
        ) from failed.error
    except psycopg.Error as error:
        is_gone = driver.closed
        if is_gone:
            connection.invalidate(error)
        statements = "; ".join(statement for statement, _ in queries)
        raise DBAPIError.instance(statements, None, error, psycopg.Error, connection_invalidated=is_gone) from error
    except BaseException:
        if driver.closed:  # interrupted, with answers on their way
            connection.invalidate()
        raise
    return rows[len(before) : len(before) + len(queries)]
