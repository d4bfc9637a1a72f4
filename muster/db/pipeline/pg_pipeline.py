"""Statements that leave in one packet and whose answers are read together, each prepared once on its connection.

The driver's own pipeline sends each statement as it is named, looks for answers each time, and makes a cursor for it:
of a short transaction that is more than half of what it costs here. These use libpq itself.

They stay prepared for as long as the connection lives. The driver by itself forgets all that was prepared at each
ROLLBACK, so at the end of each transaction that only read; and what it forgets has to be planned again.
"""

import re
import select
import time
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import psycopg
import structlog
from psycopg import adapt
from psycopg.abc import Buffer, PQGen, Transformer
from psycopg.adapt import PyFormat
from psycopg.errors import FeatureNotSupported, InvalidSqlStatementName, error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from muster import progress

Query = tuple[str, Mapping[str, Any]]
"""A statement in the driver's own words (``%(name)s``), and its parameters."""

BEGIN: Final[Query] = ("BEGIN", {})
COMMIT: Final[Query] = ("COMMIT", {})
ROLLBACK: Final[Query] = ("ROLLBACK", {})
MAX_PREPARED: Final = 256
_BEGIN: Final = b"BEGIN"
_UNPREPARED: Final = (_BEGIN, b"COMMIT", b"ROLLBACK")
"""Beginnings of statements that are read faster than a name is looked up; ROLLBACK always has to work."""
_CHECK_MS: Final = 1000
"""Interval in which libpq is asked at least: a poll of the socket does not show data that TLS has already read."""
_INTERVAL_S: Final = 0.1
"""Interval at which the driver looks for an interruption while it waits."""
_READ_ONLY: Final = "25006"
_log = structlog.get_logger(__name__)
_PLACEHOLDER: Final = re.compile(r"%(?:\((?P<name>\w+)\)s|(?P<other>.|\Z))", re.DOTALL)


_Key = tuple[bytes, Sequence[int]]


@dataclass(slots=True)
class _Kept:
    """The state that a connection keeps between round trips.

    ``names``: of its prepared statements, by their text as the server reads it and the types of their parameters.
    """

    transformer: Transformer
    names: dict[_Key, bytes] = field(default_factory=dict)
    num_named: int = 0


@dataclass(slots=True)
class _Bound:
    """A statement with its parameters as they are sent."""

    query: bytes
    types: Sequence[int] = ()
    values: Sequence[Buffer | None] = ()
    formats: Sequence[Format] | None = None


class StatementError(Exception):
    """``error``, and which of the statements it is of."""

    def __init__(self, statement: str, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.statement, self.error = statement, error


@dataclass(slots=True)
class Silence:
    """When a database last kept silent past a deadline in this process, by the monotonic clock."""

    newest_s: float = float("-inf")


SILENCE: Final = Silence()


@dataclass(slots=True)
class _Contact:
    """When the other end of a connection last took or sent something, by the monotonic clock."""

    at_s: float = field(default_factory=time.monotonic)

    def watched(self, gen: PQGen[Any]) -> PQGen[Any]:
        """Run the driver's generator, and note each time that its socket is ready."""
        ready: Any = None
        try:
            while True:
                ready = yield gen.send(ready)
                if ready:
                    self.at_s = time.monotonic()
        except StopIteration as done:
            return done.value


class Connection(psycopg.Connection[Any]):
    """The driver's connection, with exchanges, each of which has a deadline.

    ``patience_s``: how long the server may keep silent. The server's own limits end a statement before. A server that
    keeps silent for longer has vanished without a word, as in a fail-over or behind a firewall, and no error of the
    network reports it: the connection is closed. None: no deadline.

    ``statement_s``: the server's limit of each further statement in a pipeline, whose answers may come together.
    """

    patience_s: float | None = None
    statement_s: float = 0.0
    _kept: _Kept | None = None

    def wait(self, gen: PQGen[Any], interval: float = _INTERVAL_S, timeout: float | None = None) -> Any:
        """Wait as the driver does, within the deadline. Each answer is progress of the loop that asked."""
        if timeout is not None or self.patience_s is None:
            answer = super().wait(gen, interval, timeout)
        else:
            answer = self._waited(gen, interval)
        progress.advance()
        return answer

    def _waited(self, gen: PQGen[Any], interval: float) -> Any:
        contact = _Contact()
        watched, left_s = contact.watched(gen), self._deadline_s(self._num_pending())
        while True:
            try:
                return super().wait(watched, interval, left_s)
            except psycopg.errors._WaitTimeout:  # noqa: SLF001  # the driver has no other name for it
                deadline_s = self._deadline_s(self._num_pending())
                left_s = contact.at_s + deadline_s - time.monotonic()
                if left_s <= 0:
                    raise self._silent(deadline_s) from None

    def _num_pending(self) -> int:
        """Return how many statements of the driver's own pipeline await their answers."""
        pipeline = self._pipeline
        return 1 if pipeline is None else len(pipeline.result_queue) + len(pipeline.command_queue)

    def _deadline_s(self, num_statements: int) -> float:
        """Return how long the server may keep silent while it runs these, each within its limit."""
        return (self.patience_s or 0.0) + max(0, num_statements - 1) * self.statement_s

    def _silent(self, waited_s: float) -> psycopg.OperationalError:
        """Close the connection, and return the error to raise."""
        where = f"{self.pgconn.host.decode() or 'a socket'}:{self.pgconn.port.decode()}"
        self.pgconn.finish()
        SILENCE.newest_s = time.monotonic()
        _log.warning("database_silent", server=where, waited_s=waited_s, then="the connection is closed")
        return psycopg.OperationalError(f"the database at {where} has not answered for {waited_s:.1f} s")

    def exchange(self, queries: Sequence[Query]) -> list[Sequence[Any]]:
        """Run statements in one round trip, and return the rows of each as named tuples.

        Where no transaction has begun, and none of the statements begins one, each of them is a transaction.

        Raises:
            StatementError: of the first that failed; later ones were not run.
            psycopg.Error: a parameter cannot be written, or the connection is broken.
        """
        if self._kept is None:
            self._kept = _Kept(adapt.Transformer(self))
        is_alone = len(queries) == 1 and self.pgconn.transaction_status == TransactionStatus.IDLE
        try:
            return self._exchanged(self._kept, queries)
        except StatementError as failed:
            if not _is_outdated(failed.error):
                raise
            self._kept.names.clear()
            if not is_alone:
                raise
            return self._exchanged(self._kept, queries)

    def _exchanged(self, kept: _Kept, queries: Sequence[Query]) -> list[Sequence[Any]]:
        with self.lock:
            bound = [_bound(kept.transformer, *one) for one in queries]
            limited = [one for one in bound if not one.query.startswith(_BEGIN)]
            deadline_s = None if self.patience_s is None else self._deadline_s(len(limited))
            try:
                keys, results = _exchanged(self.pgconn, kept, bound, deadline_s)
            except _SilentError:
                raise self._silent(deadline_s or 0.0) from None
            progress.advance()
            _forget_unprepared(kept, keys, results)
            answers: list[Sequence[Any]] = []
            for key, result in zip(keys, results, strict=True):
                if result.status == ExecStatus.FATAL_ERROR:
                    error = error_from_result(result, encoding=self.info.encoding)
                    if error.sqlstate == _READ_ONLY and not self.read_only:
                        self.close()  # this server is no primary any more: the next connection finds that one
                    raise StatementError(queries[len(answers)][0], error)
                if key is None:
                    answers.append(_rows(kept.transformer, result))
        return answers

    def rollback(self) -> None:
        """Roll back as the driver does, but keep the prepared statements."""
        status = self.pgconn.transaction_status
        if status == TransactionStatus.IDLE:
            return
        is_at_rest = status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}
        if not is_at_rest or self.pgconn.pipeline_status != PipelineStatus.OFF:
            super().rollback()
            return
        try:
            self.exchange([ROLLBACK])
        except StatementError as failed:
            raise failed.error from None

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """Deallocate as the driver does. After DDL and savepoints it discards all statements, ours too."""
        if name is None and self._kept is not None:
            self._kept.names.clear()
        yield from super()._deallocate(name)


def _is_outdated(error: psycopg.Error) -> bool:
    """Return whether the server discarded the prepared statements, or a migration changed the columns of a result."""
    is_changed = isinstance(error, FeatureNotSupported) and "cached plan" in str(error)
    return is_changed or isinstance(error, InvalidSqlStatementName)


def _forget_unprepared(kept: _Kept, keys: Sequence[_Key | None], results: Sequence[PGresult]) -> None:
    for key, result in zip(keys, results, strict=True):
        if key is not None and result.status != ExecStatus.COMMAND_OK:
            kept.names.pop(key, None)


def begin_statement(driver: Connection) -> Query | None:
    """Return the statement that begins the transaction; None where it has begun, or where each statement is its own."""
    if driver.autocommit or driver.pgconn.transaction_status != TransactionStatus.IDLE:
        return None
    if driver.isolation_level is None and driver.read_only is None and driver.deferrable is None:
        return BEGIN
    words = ["BEGIN"]
    if driver.isolation_level is not None:
        words.append(f"ISOLATION LEVEL {driver.isolation_level.name.replace('_', ' ')}")
    if driver.read_only is not None:
        words.append("READ ONLY" if driver.read_only else "READ WRITE")
    if driver.deferrable is not None:
        words.append("DEFERRABLE" if driver.deferrable else "NOT DEFERRABLE")
    return " ".join(words), {}


@lru_cache(maxsize=1024)
def _with_numbered_parameters(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """``%(name)s`` as ``$1``, and the names in this order.

    Raises:
        psycopg.ProgrammingError: a percent sign that is neither a parameter nor doubled.
    """
    places: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None and match["other"] != "%":
            raise psycopg.ProgrammingError(f"write %% for a percent sign, not %{match['other']}")
        return "%" if name is None else f"${places.setdefault(name, len(places) + 1)}"

    return _PLACEHOLDER.sub(numbered, statement).encode(), tuple(places)


def _bound(transformer: Transformer, statement: str, parameters: Mapping[str, Any]) -> _Bound:
    query, names = _with_numbered_parameters(statement)
    if not names:
        return _Bound(query)
    values = transformer.dump_sequence([parameters[name] for name in names], [PyFormat.AUTO] * len(names))
    return _Bound(query, transformer.types or (), values, transformer.formats)


class _SilentError(Exception):
    """The server has kept silent past the deadline."""


def _exchanged(
    pgconn: PGconn, kept: _Kept, bound: Sequence[_Bound], patience_s: float | None
) -> tuple[list[_Key | None], list[PGresult]]:
    """Return a result for each statement, preceded by that of its preparation, with its key, where it was new.

    Raises ``_SilentError`` when the server keeps silent for longer than ``patience_s``.
    """
    keys: list[_Key | None] = []
    try:
        pgconn.enter_pipeline_mode()
        for one in bound:
            key = (one.query, one.types)
            name = kept.names.get(key)
            is_to_prepare = len(kept.names) < MAX_PREPARED and not one.query.startswith(_UNPREPARED)
            if name is None and is_to_prepare:
                kept.num_named += 1
                name = kept.names[key] = b"muster_%d" % kept.num_named
                keys.append(key)
                pgconn.send_prepare(name, one.query, one.types)
            keys.append(None)
            if name is None:
                pgconn.send_query_params(one.query, one.values, one.types, one.formats)
            else:
                pgconn.send_query_prepared(name, one.values, one.formats)
        pgconn.pipeline_sync()
        results = _results(pgconn, patience_s)
        pgconn.exit_pipeline_mode()
    except _SilentError:
        raise
    except BaseException:
        pgconn.finish()  # or it would give the answers to these as those to the next
        raise
    return keys, results


def _results(pgconn: PGconn, patience_s: float | None) -> list[PGresult]:
    """Return the results of all statements before the sync. The server's limits bound the time of each."""
    contact_s, check_ms = time.monotonic(), _check_ms(patience_s)
    poller = select.poll()
    is_sent = pgconn.flush() == 0
    poller.register(pgconn.socket, select.POLLIN if is_sent else select.POLLIN | select.POLLOUT)
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy() or not is_sent:
            if poller.poll(check_ms):
                contact_s = time.monotonic()
            elif patience_s is not None and time.monotonic() - contact_s >= patience_s:
                raise _SilentError
            pgconn.consume_input()
            if not is_sent and (is_sent := pgconn.flush() == 0):
                poller.modify(pgconn.socket, select.POLLIN)
        result = pgconn.get_result()
        if result is None:  # between two statements' results
            if pgconn.status == ConnStatus.BAD:
                raise psycopg.OperationalError(pgconn.get_error_message())
            continue
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)


def _check_ms(patience_s: float | None) -> int:
    return _CHECK_MS if patience_s is None else min(_CHECK_MS, max(1, int(patience_s * 250)))


def _rows(transformer: Transformer, result: PGresult) -> Sequence[Any]:
    if result.status != ExecStatus.TUPLES_OK:
        return ()
    names = tuple([result.fname(column) or b"" for column in range(result.nfields)])
    transformer.set_pgresult(result)
    rows: Sequence[Any] = transformer.load_rows(0, result.ntuples, _row_of(names))
    return rows


@lru_cache(maxsize=1024)
def _row_of(names: tuple[bytes, ...]) -> Callable[[Sequence[Any]], Any]:
    columns = [name.decode() for name in names]
    row: Any = namedtuple("Row", columns, rename=True)  # type: ignore[misc]  # noqa: PYI024  # SQL names its fields
    make: Callable[[Sequence[Any]], Any] = row._make
    return make
