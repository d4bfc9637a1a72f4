"""NOTIFY for a quick wake-up between processes, for efficiency alone: a process that waits polls by itself too."""

import time
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import sql
from sqlalchemy import Engine

from muster.db.own_connection import connect
from muster.db.pipeline.pg_pipeline import Connection
from muster.domain.errors import UnavailableError

CHECK_S: Final = 10.0
"""Interval at which a silent connection is asked whether it is still connected: else it would wake no one again."""


class Notifications:
    """LISTEN on a connection of its own. One thread uses it."""

    def __init__(self, engine: Engine, *channels: str) -> None:
        self._engine = engine
        self._channels = channels
        self._connection: Connection | None = None
        self._received_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def wait(self, timeout_s: float) -> bool:
        """Return whether a notification came within ``timeout_s``; several at once count as one.

        Raises ``UnavailableError`` when the database does not answer.
        """
        try:
            connection = self._open()
            notices = list(connection.notifies(timeout=timeout_s, stop_after=1))
            notices += connection.notifies(timeout=0)
            if notices:
                self._received_s = time.monotonic()
            elif time.monotonic() - self._received_s >= CHECK_S:
                connection.exchange([("SELECT 1", {})])
                self._received_s = time.monotonic()
        except psycopg.Error as error:
            self._close()
            raise UnavailableError(retry_after_s=1) from error
        return bool(notices)

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._engine)
            for channel in self._channels:
                self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self._received_s = time.monotonic()
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
