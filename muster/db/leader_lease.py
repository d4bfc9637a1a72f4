"""The lease of the one process that leads, renewed by the progress of its work.

    0 s     A takes the lease: term 7, until 8 s
    1 s     A's cycle advances: until 9 s
    1.5 s   A is stopped, or hangs: nothing renews
    9 s     B asks each second, and takes it: term 8
    20 s    A is resumed: its next write names term 7 and is refused

The loop that leads renews it, in its own thread, each time that it advances. So a lead ends with its work, not with its
process, and a long cycle that advances keeps it. The database's clock alone counts. A former leader may be resumed at
any moment, so its term stands in each of its transactions (``guard``).
"""

import os
import secrets
import socket
import time
import zlib
from collections.abc import Callable
from typing import Final

import psycopg
import structlog
from sqlalchemy import Engine

from muster.db.own_connection import connect
from muster.db.pipeline.pg_pipeline import Connection, Query, StatementError
from muster.domain.errors import UnavailableError

LEASE_S: Final = 8.0
RENEW_S: Final = 1.0
CONSTRAINT: Final = "leader_leases_lead"
"""Name by which the database refuses a write of a former leader."""
_TAKE: Final = """
    INSERT INTO leader_leases AS lease (name, holder, term, taken_at, expires_at)
    VALUES (%(name)s, %(holder)s, 1, clock_timestamp(), clock_timestamp() + make_interval(secs => %(lease_s)s))
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, term = lease.term + 1, taken_at = excluded.taken_at,
        expires_at = excluded.expires_at
    WHERE lease.expires_at <= clock_timestamp()
    RETURNING term
"""
_RENEW: Final = """
    UPDATE leader_leases SET expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s)
    WHERE name = %(name)s AND term = %(term)s RETURNING term
"""
_MARK: Final = "SELECT pg_try_advisory_lock_shared(%(mark)s::bigint) AS is_marked"
_UNMARK: Final = "SELECT pg_advisory_unlock_all()"
_NAMESPACE_OF_0_1_0: Final = 0x4D55
_log = structlog.get_logger(__name__)


class LeadLostError(UnavailableError):
    """Another process leads by now, or this one could not renew its lease in time."""


def instance_name() -> str:
    """Return a name for this process, which no other has."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def mark_of(name: str) -> int:
    """Return the key of an advisory lock that an API of 0.1.0 treats as that of its own scheduler.

    Its query compares namespace and key, which ``pg_locks`` shows in the same columns as the halves of one long key. A
    scheduler of 0.1.0 locks two short keys, and those are other locks: it works next to a lead of this release.
    """
    return _NAMESPACE_OF_0_1_0 << 32 | zlib.crc32(name.encode()) & 0x7FFFFFFF


class LeaderLease:
    """The lease ``name``. The thread of the loop that leads uses it, and no other."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        holder: str,
        *,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._name = name
        self._holder = holder
        self._lease_s = lease_s
        self._clock = clock
        self._term: int | None = None
        self._sent_s = self._renewed_s = float("-inf")
        self._connection: Connection | None = None
        self._is_marked = False

    @property
    def guard(self) -> Query:
        """Return the statement that fails, by ``CONSTRAINT``, in a transaction of a lead that has ended."""
        return "SELECT require_lead(%(name)s, %(term)s::bigint)", {"name": self._name, "term": self._term or 0}

    def take(self) -> bool:
        """Return whether this process leads from now on. Raises ``UnavailableError``."""
        sent_s = self._clock()
        try:
            self._term = self._query(_TAKE, {"holder": self._holder})
        except psycopg.Error as error:
            raise UnavailableError(retry_after_s=1) from error
        self._sent_s = self._renewed_s = sent_s
        self._mark()
        return self._term is not None

    def advance(self) -> None:
        """Renew the lease if it was renewed more than a second ago. A fault is logged; ``require`` raises it."""
        if self._term is None or self._clock() - self._sent_s < min(RENEW_S, self._lease_s / 4):
            return
        self._sent_s = sent_s = self._clock()
        try:
            renewed = self._query(_RENEW, {"term": self._term})
        except psycopg.Error as error:
            _log.warning("lead_not_renewed", name=self._name, term=self._term, cause=str(error))
            return
        if renewed is None:
            _log.warning("lead_lost", name=self._name, term=self._term)
        self._term = renewed
        self._renewed_s = sent_s
        self._mark()

    def require(self) -> None:
        """Renew where that is due.

        Raises:
            LeadLostError: another process leads, or it may, since the lease was not renewed in time.
        """
        self.advance()
        if self._term is None:
            raise LeadLostError(f"another process has the lead of the {self._name}")
        if self._clock() - self._renewed_s > self._lease_s:
            raise LeadLostError(f"the lead of the {self._name} could not be renewed in time")

    def close(self) -> None:
        """Give the lead up, so that another process need not wait for its end."""
        try:
            if self._term is not None:
                self._query(_RENEW, {"term": self._term, "lease_s": 0.0})
        except psycopg.Error as error:
            _log.warning("lead_not_given_up", name=self._name, cause=str(error))
        finally:
            self._term = None
            self._drop_connection()

    def _mark(self) -> None:
        """Hold ``mark_of`` the name as long as this process leads; nothing of this release rests on it."""
        is_wanted = self._term is not None
        if self._connection is None or self._is_marked == is_wanted:
            return
        try:
            self._connection.exchange([(_MARK if is_wanted else _UNMARK, {"mark": mark_of(self._name)})])
            self._is_marked = is_wanted
        except (StatementError, psycopg.Error) as fault:
            _log.warning("lead_not_marked", name=self._name, cause=str(fault))
            self._drop_connection()

    def _query(self, statement: str, parameters: dict[str, object]) -> int | None:
        """Return the term in the answer; None: the condition did not hold."""
        named = {"name": self._name, "lease_s": self._lease_s, **parameters}
        try:
            if self._connection is None:
                self._connection = connect(self._engine, application_name="muster-lead")
            ((rows),) = self._connection.exchange([(statement, named)])
        except StatementError as failed:
            self._drop_connection()
            raise failed.error from failed
        except psycopg.Error:
            self._drop_connection()
            raise
        return rows[0].term if rows else None

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._is_marked = False
