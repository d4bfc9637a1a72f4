"""Databases as the migrations make them, each test's own. One that a test is done with is emptied for the next.

To make one and to drop it is to make and remove seven hundred files: a fifth of a second of the processor, nearly all
of it in the kernel. To empty it takes a tenth of that. It is then held against what it was when it was made: one that a
test altered by more than rows, or that grew, is dropped.

The server's own counters say which tables were written since the database was last emptied: only these are read,
emptied and measured. A crash of the server takes its counters away; then all tables are read.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString, Self

import psycopg
from psycopg import sql

from local.postgres import PostgresServer

PATIENCE_S: Final = 10.0
PAUSE_S: Final = 0.002
MOST_INDEX_BYTES: Final = 65_536
"""An index does not shrink as its table is emptied: what is larger goes with its database."""

_FILLED: Final[LiteralString] = """
    SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
    AND pg_relation_size(oid) > 0"""
_TABLES: Final[LiteralString] = """
    SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"""
_COUNTED_SINCE: Final[LiteralString] = "SELECT stats_reset FROM pg_stat_database WHERE datname = current_database()"
# Rows of transactions that were rolled back count too. TRUNCATE is in _RELATIONS: it gives a table another file.
_WRITTEN: Final[LiteralString] = """
    SELECT relname, relnamespace = 'pg_catalog'::regnamespace FROM pg_class
    WHERE relnamespace IN ('pg_catalog'::regnamespace, 'public'::regnamespace) AND relkind = 'r'
    AND NOT relisshared AND oid <> 'pg_class'::regclass
    AND pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid) + pg_stat_get_tuples_deleted(oid) > 0"""
_SEQUENCES: Final[LiteralString] = """
    SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'"""
_CATALOGS: Final[LiteralString] = """
    SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'
    AND NOT relisshared AND relname <> 'pg_class' ORDER BY relname"""
# Whatever is defined or altered writes a row, and its transaction is younger than all that made the template.
_OF_CATALOG: Final[LiteralString] = "SELECT {}, count(*), count(*) FILTER (WHERE age(xmin) < age({})) FROM {}"
# A vacuum writes its figures into the rows of pg_class, which is no alteration.
_RELATIONS: Final[LiteralString] = """
    SELECT md5(string_agg((oid, relname, relnamespace, reltype, relowner, relam, relfilenode, reltablespace, relkind,
        relpersistence, reltoastrelid, relhasindex, relnatts, relchecks, relhasrules, relhastriggers, relrowsecurity,
        relforcerowsecurity, relreplident, relispartition, relacl, reloptions)::text, ',' ORDER BY oid))
    FROM pg_class WHERE oid >= 16384"""
_SETTINGS: Final[LiteralString] = """
    SELECT (SELECT count(*) FROM pg_db_role_setting), datallowconn, datconnlimit, datacl
    FROM pg_database WHERE datname = current_database()"""
# The figures that the planner uses for a table that was never vacuumed.
_FIGURES: Final[LiteralString] = """
    SELECT array_agg(oid), array_agg(relpages), array_agg(reltuples), array_agg(relallvisible)
    FROM pg_class WHERE relkind IN ('r', 't', 'i') AND oid >= 16384"""
_RESTORE_FIGURES: Final[LiteralString] = """
    UPDATE pg_class c SET relpages = f.pages, reltuples = f.tuples, relallvisible = f.visible
    FROM unnest(%s::oid[], %s::int[], %s::real[], %s::int[]) AS f (oid, pages, tuples, visible)
    WHERE c.oid = f.oid AND (c.relpages, c.reltuples, c.relallvisible) <> (f.pages, f.tuples, f.visible)"""
_GROWN: Final[LiteralString] = """
    SELECT count(*) FROM pg_class t LEFT JOIN pg_index i ON i.indrelid IN (t.oid, t.reltoastrelid)
    WHERE t.relnamespace = 'public'::regnamespace AND t.relkind = 'r' AND t.relname = ANY(%s) AND (
        t.relname <> ALL(%s) AND pg_relation_size(t.oid) > 0
        OR t.reltoastrelid <> 0 AND pg_relation_size(t.reltoastrelid) > 0
        OR pg_relation_size(i.indexrelid) > %s)"""
# No trigger keeps a row. No emptied database needs to outlive a crash.
_TO_EMPTY: Final = "-c session_replication_role=replica -c synchronous_commit=off -c allow_system_table_mods=on"

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Content:
    """What a database is held against, and what it is restored to. ``since``: a transaction after all that made it."""

    seeds: dict[str, bytes]
    sequences: dict[str, tuple[int, bool]]
    since: int
    catalogs: list[str]
    definitions: list[tuple[Any, ...]]
    figures: tuple[Any, ...]

    @classmethod
    def read(cls, connection: Connection) -> Self:
        ((since,),) = connection.execute("SELECT pg_current_xact_id()::xid::text::bigint")
        catalogs = _names(connection, _CATALOGS)
        seeds = {name: copied for name in _names(connection, _FILLED) if (copied := rows_of(connection, name))}
        (figures,) = connection.execute(_FIGURES)
        definitions = [*catalogs_of(connection, catalogs, since), *relations_of(connection)]
        return cls(seeds, sequences_of(connection), since, catalogs, definitions, figures)


@dataclass(frozen=True, slots=True)
class Idle:
    """A database that is not lent. ``counted_since``: the server counts the writes to its tables from then on."""

    as_made: Content
    counted_since: datetime


class Databases:
    """Of one server, copies of its database ``template``."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        self._idle: dict[str, Idle] = {}
        self._administration: Connection | None = None
        self.num_made = 0

    @contextlib.contextmanager
    def lent(self) -> Iterator[str]:
        """Yield a database's name. Afterwards no connection reaches it by that, though some were left open."""
        name, idle = self._idle.popitem() if self._idle else self._made()
        try:
            yield name
        finally:
            self._take_back(name, idle)

    def drop_idle(self) -> None:
        while self._idle:
            self._server.drop_database(self._idle.popitem()[0])

    def close(self) -> None:
        """Close the connection that renames databases."""
        if self._administration is not None:
            self._administration.close()

    def _made(self) -> tuple[str, Idle]:
        name = _fresh_name()
        self._server.create_database(name, template=self._template)
        self.num_made += 1
        with psycopg.connect(self._server.dsn(name), autocommit=True) as connection:
            return name, Idle(Content.read(connection), _restart_counts(connection))

    def _take_back(self, name: str, idle: Idle) -> None:
        renamed = _fresh_name()
        try:
            self._rename(name, renamed)
        except psycopg.errors.ObjectInUse:
            self._server.drop_database(name)
            return
        with psycopg.connect(self._server.dsn(renamed), autocommit=True, options=_TO_EMPTY) as connection:
            is_as_made = emptied(connection, idle)
            if is_as_made:
                self._idle[renamed] = Idle(idle.as_made, _restart_counts(connection))
        if not is_as_made:
            self._server.drop_database(renamed)

    def _rename(self, name: str, renamed: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        connection = self._administrative()
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        while connection.execute(others, [name]).fetchone() is not None and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        connection.execute(
            sql.SQL("ALTER DATABASE {} RENAME TO {}").format(sql.Identifier(name), sql.Identifier(renamed))
        )

    def _administrative(self) -> Connection:
        """Return a connection to no test's database. It stays open, unless a test has stopped the server."""
        if self._administration is not None:
            try:
                self._administration.execute("")
            except psycopg.OperationalError:
                self._administration.close()
            else:
                return self._administration
        self._administration = psycopg.connect(self._server.dsn("postgres"), autocommit=True)
        return self._administration


def emptied(connection: Connection, idle: Idle) -> bool:
    """Takes out what was put in since. False: it is not as it was made, and must go."""
    as_made = idle.as_made
    written = _written(connection, idle.counted_since)
    num_catalogs = len(as_made.catalogs)
    definitions = relations_of(connection)
    if written is None or written.catalogs:
        definitions = [*catalogs_of(connection, as_made.catalogs, as_made.since), *definitions]
        num_catalogs = 0
    if definitions != as_made.definitions[num_catalogs:]:
        return False
    filled = {*_names(connection, _FILLED), *as_made.seeds} if written is None else written.tables
    _restore_rows(connection, filled, as_made.seeds)
    for name, (last_value, is_called) in as_made.sequences.items():
        connection.execute("SELECT setval(%s::regclass, %s, %s)", [name, last_value, is_called])
    if not filled:
        return True
    connection.execute(_RESTORE_FIGURES, as_made.figures)
    measured = _names(connection, _TABLES) if written is None else list(filled)
    (num_grown,) = connection.execute(_GROWN, [measured, list(as_made.seeds), MOST_INDEX_BYTES])
    return num_grown == (0,)


@dataclass(frozen=True, slots=True)
class Written:
    """Tables and catalogs with a row that was put in, altered or taken out."""

    tables: set[str]
    catalogs: set[str]


def _written(connection: Connection, counted_since: datetime) -> Written | None:
    """Return what was written since. None: the server does not know, for it has begun to count at another time."""
    if connection.execute(_COUNTED_SINCE).fetchone() != (counted_since,):
        return None
    found = list(connection.execute(_WRITTEN))
    return Written({name for name, is_catalog in found if not is_catalog}, {name for name, is_it in found if is_it})


def _restart_counts(connection: Connection) -> datetime:
    """Return since when. With no rows counted, no table is soon vacuumed and analyzed amid a test."""
    connection.execute("SELECT pg_stat_force_next_flush()")  # or its own writes would be counted as it ends
    connection.execute("SELECT pg_stat_reset()")
    ((counted_since,),) = connection.execute(_COUNTED_SINCE)
    assert isinstance(counted_since, datetime)
    return counted_since


def _restore_rows(connection: Connection, filled: set[str], seeds: dict[str, bytes]) -> None:
    changed = [name for name in filled if name not in seeds or rows_of(connection, name) != seeds[name]]
    if not changed:
        return
    _delete(connection, changed)
    for name in seeds.keys() & set(changed):
        _copy_in(connection, name, seeds[name])


def _delete(connection: Connection, names: list[str]) -> None:
    """Of no row anything stays: what is put in next is stored in the order in which it comes, as in a new table."""
    tables = [sql.Identifier(name) for name in names]
    connection.execute(sql.SQL("; ").join(sql.SQL("DELETE FROM {}").format(table) for table in tables))
    connection.execute(sql.SQL("VACUUM (TRUNCATE, INDEX_CLEANUP ON) {}").format(sql.SQL(", ").join(tables)))


def _copy_in(connection: Connection, name: str, rows: bytes) -> None:
    with (
        connection.cursor() as cursor,
        cursor.copy(sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(name))) as copy,
    ):
        copy.write(rows)


def rows_of(connection: Connection, table: str) -> bytes:
    """All of them, in the order in which they lie there."""
    with connection.cursor() as cursor, cursor.copy(sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(table))) as copy:
        return b"".join(bytes(part) for part in copy)


def catalogs_of(connection: Connection, catalogs: list[str], since: int) -> list[tuple[Any, ...]]:
    """What changes when anything but rows is changed: tables, functions, triggers, statistics. One tuple a catalog."""
    younger = sql.SQL("{}::text::xid").format(since)
    counts = [sql.SQL(_OF_CATALOG).format(name, younger, sql.Identifier(name)) for name in catalogs]
    return sorted(connection.execute(sql.SQL(" UNION ALL ").join(counts)))


def relations_of(connection: Connection) -> list[tuple[Any, ...]]:
    """What changes when a table gets another file, and the database's settings, which no counter counts."""
    return [*connection.execute(_RELATIONS), *connection.execute(_SETTINGS)]


def sequences_of(connection: Connection) -> dict[str, tuple[int, bool]]:
    found = {}
    for name in _names(connection, _SEQUENCES):
        ((last_value, is_called),) = connection.execute(
            sql.SQL("SELECT last_value, is_called FROM {}").format(sql.Identifier(name))
        )
        found[name] = (last_value, is_called)
    return found


def _names(connection: Connection, query: LiteralString) -> list[str]:
    return [name for (name,) in connection.execute(query)]


def _fresh_name() -> str:
    return f"test_{uuid.uuid4().hex}"
