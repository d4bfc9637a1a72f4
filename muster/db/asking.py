"""One statement by itself, through libpq: a snapshot of its own, in no transaction, for one round trip.

The driver's cursors do more for so short a question than PostgreSQL does; what every request asks goes by here. Values
are put into PostgreSQL's words and taken out of them by the driver's own adapters, so they read as anywhere else.
"""

import functools
import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

_PREPARED: Final = "muster_prepared"
"""Where a connection's record keeps the names of what is prepared there; it begins empty with each new connection."""
_PARAMETER: Final = re.compile(r"%\((\w+)\)s|%(.)")


def ask_alone(engine: Engine, statement: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
    """The rows, as named tuples. ``statement`` is in the driver's own words (``%(name)s``), and reads only.

    Raises:
        sqlalchemy.exc.DBAPIError: as SQLAlchemy would; a connection that is gone goes back to no pool.
        sqlalchemy.exc.TimeoutError: every connection is in use.
    """
    lent = None
    try:
        lent = engine.raw_connection()
        return _asked(lent.driver_connection, lent.info.setdefault(_PREPARED, {}), statement, parameters)
    except psycopg.Error as error:
        is_gone = lent is None or _is_gone(lent.driver_connection)
        if lent is not None and is_gone:
            lent.invalidate(error)
        raise DBAPIError.instance(statement, None, error, psycopg.Error, connection_invalidated=is_gone) from error
    finally:
        if lent is not None:
            lent.close()


def _asked(driver: Any, prepared: dict[Any, bytes], statement: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
    if not isinstance(driver, psycopg.Connection):
        raise TypeError("the engine's driver is psycopg 3")
    words, names = _numbered(statement)
    adapting = Transformer(driver)
    values: Any = adapting.dump_sequence([parameters[name] for name in names], [PyFormat.AUTO] * len(names))
    types, formats = adapting.types or (), adapting.formats or ()
    connection, kind = driver.pgconn, (words, types)
    name = prepared.get(kind)
    if name is None:
        name = _prepare(connection, f"muster_{len(prepared)}".encode(), words, types)
        prepared[kind] = name
    result = connection.exec_prepared(name, values, formats, Format.BINARY)
    if _is_forgotten(result):
        _prepare(connection, name, words, types)
        result = connection.exec_prepared(name, values, formats, Format.BINARY)
    _require(result, ExecStatus.TUPLES_OK)
    adapting.set_pgresult(result)
    return adapting.load_rows(0, result.ntuples, _row_of(tuple(map(result.fname, range(result.nfields)))))


def _is_forgotten(result: PGresult) -> bool:
    """The driver drops all that is prepared on its connection after some rollbacks, ours too."""
    return result.status == ExecStatus.FATAL_ERROR and isinstance(error_from_result(result), InvalidSqlStatementName)


def _prepare(connection: PGconn, name: bytes, words: bytes, types: Sequence[int]) -> bytes:
    _require(connection.prepare(name, words, types), ExecStatus.COMMAND_OK)
    return name


def _require(result: PGresult, status: ExecStatus) -> None:
    if result.status != status:
        raise error_from_result(result)


@functools.lru_cache(maxsize=1_000)
def _numbered(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """The statement with ``$1`` for its first parameter, and the parameters' names in the order of their numbers.

    Raises:
        psycopg.ProgrammingError: a percent sign that is neither a parameter nor doubled.
    """
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        name, other = found.groups()
        if name is None:
            if other != "%":
                raise psycopg.ProgrammingError(f"write %% for a percent sign, not %{other}")
            return "%"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PARAMETER.sub(number, statement).encode(), tuple(names)


@functools.lru_cache(maxsize=1_000)
def _row_of(columns: tuple[bytes, ...]) -> Callable[[Sequence[Any]], Any]:
    kind: Any = namedtuple("Row", [column.decode() for column in columns])  # type: ignore[misc]  # noqa: PYI024  # known at run time
    make: Callable[[Sequence[Any]], Any] = kind._make
    return make


def _is_gone(driver: Any) -> bool:
    return driver is None or bool(driver.closed or driver.broken)
