"""The engine: psycopg 3, a pool that looks before it lends, and limits that hold in every session.

A database may vanish without a word: its host loses power, a firewall forgets the connection, a proxy in between stays
connected. So the system closes a connection that does not confirm what was sent, and the client closes one that
confirms and does not answer. The next connection goes to the first host of the URL that takes writes.
"""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Engine, create_engine, event, make_url

from muster.db.pipeline.pg_pipeline import Connection
from muster.db.pool_checks import check_before_lending

_PORT: Final = "5432"
SILENT_S: Final = 3.0
"""Time that a server may take beyond its own limits, before it counts as gone."""
NETWORK: Final = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 6_000,
}
"""libpq's settings by which the system closes a connection whose other end confirms nothing: after 6 s of data sent,
and 11 s idle."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of a statement, a wait for a lock and an idle transaction, in milliseconds. 0: no limit.

    ``connect_s`` and ``pool_s``: how long to wait for a new connection to each host, and for a free one of the pool.
    """

    statement_ms: int = 5_000
    lock_ms: int = 2_000
    idle_in_transaction_ms: int = 10_000
    connect_s: int = 2
    pool_s: int = 2

    @property
    def patience_s(self) -> float | None:
        """Return how long a server may keep silent: a little beyond its own limit of a statement, if any."""
        return None if self.statement_ms == 0 else self.statement_ms / 1000 + SILENT_S


DEFAULT_LIMITS: Final = SessionLimits()
NO_LIMITS: Final = SessionLimits(statement_ms=0, lock_ms=0, idle_in_transaction_ms=0)


def driver_url(url: str | URL) -> URL:
    """``postgresql://…`` or ``postgres://…`` as SQLAlchemy needs it for psycopg 3.

    It may name several hosts, as libpq's own may: ``postgresql://user@one:5432,two:5432/muster``. Then a connection
    goes to the first that takes writes, unless the URL has another ``target_session_attrs``.
    """
    parsed = make_url(_with_hosts_apart(url) if isinstance(url, str) else url)
    if parsed.drivername not in {"postgres", "postgresql", "postgresql+psycopg"}:
        raise ValueError(f"a database URL begins with postgresql://, not {parsed.drivername}://")
    hosts = parsed.query.get("host", "")
    if (isinstance(hosts, tuple) or "," in hosts) and "target_session_attrs" not in parsed.query:
        parsed = parsed.update_query_dict({"target_session_attrs": "read-write"})
    return parsed.set(drivername="postgresql+psycopg")


def _with_hosts_apart(url: str) -> str:
    """Return a URL with several hosts in SQLAlchemy's form, where each is a parameter."""
    scheme, separator, rest = url.partition("://")
    end = min(rest.find(mark) if mark in rest else len(rest) for mark in "/?")
    authority, after = rest[:end], rest[end:]
    user, at, hosts = authority.rpartition("@")
    if "," not in hosts:
        return url
    path, _, query = after.partition("?")
    names, ports = zip(*(_host_and_port(host) for host in hosts.split(",")), strict=True)
    parameters = [f"host={quote(','.join(names), safe=',')}", f"port={','.join(ports)}", *([query] if query else [])]
    return f"{scheme}{separator}{user}{at}{path or '/'}?{'&'.join(parameters)}"


def _host_and_port(text: str) -> tuple[str, str]:
    """Return a host, without the brackets of an IPv6 address, and its port."""
    name, _, port = text.rpartition(":") if text.rpartition(":")[2].isdigit() and text[-1] != "]" else (text, "", "")
    return name.removeprefix("[").removesuffix("]"), port or _PORT


def make_engine(
    url: str | URL,
    *,
    application_name: str = "muster",
    pool_size: int = 5,
    max_overflow: int = 5,
    limits: SessionLimits = DEFAULT_LIMITS,
) -> Engine:
    """Return an engine whose sessions run in UTC under ``limits``.

    Its sessions show ``application_name`` in pg_stat_activity.
    """
    settings = {
        "timezone": "UTC",
        "statement_timeout": limits.statement_ms,
        "lock_timeout": limits.lock_ms,
        "idle_in_transaction_session_timeout": limits.idle_in_transaction_ms,
    }
    engine = create_engine(
        driver_url(url),
        pool_size=pool_size,
        max_overflow=max_overflow,
        pool_timeout=limits.pool_s,
        pool_reset_on_return=None,  # lending.py does, where there is something to end
        connect_args={
            "application_name": application_name,
            "connect_timeout": limits.connect_s,
            **NETWORK,
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        },
    )

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: list[Any], named: dict[str, Any]) -> Connection:
        connection = Connection.connect(*arguments, **named)
        connection.patience_s = limits.patience_s
        connection.statement_s = limits.statement_ms / 1000
        return connection

    @event.listens_for(engine, "handle_error")
    def leave_standby(context: Any) -> None:
        """Give up the connection to a server that has become a standby: the next one finds the primary."""
        if getattr(context.original_exception, "sqlstate", None) == "25006" and not _is_read_only(context.connection):
            context.is_disconnect = True

    check_before_lending(engine)
    return engine


def _is_read_only(connection: Any) -> bool:
    return bool(connection is not None and connection.get_execution_options().get("postgresql_readonly"))
