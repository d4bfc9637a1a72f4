"""Checks of a connection before the pool lends it: its socket each time, and a query if it was idle for long.

A question on each loan costs a round trip, a quarter of what a short read costs in all. A server that stops or restarts
closes its sockets, and that shows here without asking; a peer that went silent (a pulled cable, a firewall's memory)
shows by the question alone.
"""

import select
import time
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError

from muster.db.pipeline.pg_pipeline import SILENCE

SURE_FOR_S: Final = 5.0
"""A connection given back less than this ago is lent again without a question, if its socket is quiet.

After a connection of this process was given up as silent, each has to answer once.
"""
PING_S: Final = 2.0
"""Longest time for the answer to that question."""
_IDLE_SINCE: Final = "muster_idle_since"
_POLLER: Final = "muster_poller"


def check_before_lending(engine: Engine) -> None:
    """Take the place of ``pool_pre_ping`` and ``reset_on_return`` on an engine whose driver is psycopg 3."""

    @event.listens_for(engine, "connect")
    @event.listens_for(engine, "checkin")
    def note(_connection: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = time.monotonic()

    @event.listens_for(engine, "reset")
    def end(connection: Any, _record: Any, state: Any) -> None:
        """Do the work of ``reset_on_return`` where there is a transaction to end."""
        if not state.transaction_was_reset and not _is_idle(connection):
            connection.rollback()

    @event.listens_for(engine, "checkout")
    def check(connection: Any, record: Any, _fairy: Any) -> None:
        """Raise ``InvalidatePoolError`` for a broken connection, so that the pool opens a new one."""
        idle_since_s = record.info[_IDLE_SINCE]
        is_fresh = time.monotonic() - idle_since_s < SURE_FOR_S and idle_since_s > SILENCE.newest_s
        if not (is_fresh and _is_quiet(connection, record.info)) and not _answers(engine, connection):
            raise InvalidatePoolError


def _is_idle(connection: Any) -> bool:
    """Return whether the connection is in no transaction, as it knows itself. A broken one is not idle."""
    return bool(connection.pgconn.transaction_status == TransactionStatus.IDLE)


def _is_quiet(connection: Any, info: dict[str, Any]) -> bool:
    """Return whether there is nothing to read: an idle server sends only its end and rare notices."""
    if connection.closed:
        return False
    poller = info.get(_POLLER)
    if poller is None:
        poller = info[_POLLER] = select.poll()
        poller.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    return not poller.poll(0)


def _answers(engine: Engine, connection: Any) -> bool:
    patience_s = connection.patience_s
    try:
        connection.patience_s = PING_S if patience_s is None else min(patience_s, PING_S)
        return engine.dialect.do_ping(connection)
    except psycopg.Error:
        return False
    finally:
        connection.patience_s = patience_s
