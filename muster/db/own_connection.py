"""A connection of one's own, next to the pool: for a loop that holds it as long as it runs."""

from typing import Any, Final

from sqlalchemy import Engine

from muster.db.engine import NETWORK
from muster.db.pipeline.pg_pipeline import Connection

CONNECT_S: Final = 2
PATIENCE_S: Final = 3.0
"""Longest silence of the server on it. It is for statements that take milliseconds."""


def connect(engine: Engine, *, application_name: str = "muster-listener") -> Connection:
    """Return a connection to the engine's database, in which each statement is a transaction. Raises psycopg.Error."""
    arguments, named = engine.dialect.create_connect_args(engine.url)
    own: dict[str, Any] = {"application_name": application_name, "connect_timeout": CONNECT_S, **NETWORK}
    connection = Connection.connect(*arguments, **{**own, **named}, autocommit=True)
    connection.patience_s = PATIENCE_S
    return connection
