"""Several statements sent in one go: as many answers for one round trip, BEGIN included where none was sent yet.

Each still runs after the one before it and sees what was committed when it begins. SQLAlchemy waits for each answer,
so these go through the driver's own pipeline, within the session's transaction.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

Asked = tuple[str, Mapping[str, Any]]
"""A statement in the driver's own words (``%(name)s``), and its parameters."""


def ask_together(session: Session, *asked: Asked, commit: bool = False) -> list[Sequence[Any]]:
    """The rows of each statement, as named tuples; none of one that gives none.

    With ``commit`` COMMIT goes along behind the last one.

    Raises:
        sqlalchemy.exc.DBAPIError: the first that failed; those after it were not run, and nothing is committed.
    """
    connection = session.connection()
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        raise TypeError("the engine's driver is psycopg 3")
    try:
        with driver.pipeline():
            cursors = [driver.cursor(row_factory=namedtuple_row).execute(*one) for one in asked]
            if commit:
                driver.commit()
        return [() if cursor.description is None else cursor.fetchall() for cursor in cursors]
    except psycopg.Error as error:
        is_gone = driver.closed or driver.broken
        if is_gone:
            connection.invalidate(error)
        sent = "; ".join(statement for statement, _ in asked)  # the driver does not say which
        wrapped = DBAPIError.instance(sent, None, error, psycopg.Error, connection_invalidated=is_gone)
        raise wrapped from error
