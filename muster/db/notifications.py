"""Words from the database between processes: advisory locks for one active worker, NOTIFY for a quick wake-up.

Both are for efficiency alone: two active workers are safe, and a process that waits for one polls by itself after a
pause.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import sql
from sqlalchemy import Connection, Engine, text

from muster.db.errors import translated_errors
from muster.domain.errors import UnavailableError

_NAMESPACE: Final = 0x4D55  # "MU": our locks never meet another application's


@contextmanager
def advisory_lock(engine: Engine, name: str) -> Iterator[bool]:
    """Yield whether this process now holds the lock ``name``, which ends with the block or the connection.

    Raises ``UnavailableError`` when the database does not answer.
    """
    key = _key_of(name)
    with translated_errors(), engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        query = text("SELECT pg_try_advisory_lock(:namespace, :key)")
        parameters = {"namespace": _NAMESPACE, "key": key}
        is_held = bool(connection.scalar(query, parameters))
        try:
            yield is_held
        finally:
            if is_held and not connection.invalidated and not connection.closed:
                connection.execute(text("SELECT pg_advisory_unlock(:namespace, :key)"), parameters)


def is_locked(connection: Connection, name: str) -> bool:
    """Return whether any process holds the advisory lock ``name`` now."""
    query = text("""
        SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = :namespace
            AND objid = :key AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
    """)
    return bool(connection.scalar(query, {"namespace": _NAMESPACE, "key": _key_of(name)}))


def _key_of(name: str) -> int:
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


class Notifications:
    """LISTEN on a connection of its own. One thread uses it."""

    def __init__(self, engine: Engine, *channels: str) -> None:
        self._engine = engine
        self._channels = channels
        self._connection: psycopg.Connection | None = None

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
        except psycopg.Error as error:
            self._close()
            raise UnavailableError(retry_after_s=1) from error
        return bool(notices)

    def _open(self) -> psycopg.Connection:
        if self._connection is None:
            url = self._engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
            self._connection = psycopg.connect(url, autocommit=True, connect_timeout=2)
            for channel in self._channels:
                self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
